"""Learning is real: a tiny model's reward rises on a one-token task, on CPU, from a fixed seed.

The task: after the prompt, sample one of 264 tokens; the reward is 1 for the 32 tokens from 'a' (97) to 128, else 0. A
uniform policy earns 32 / 264 = 0.12. GRPO sees returns only, through the credit plug-in and the learner of the product.
"""

import time

import torch

from components import plugins
from components.credit.order import assign
from components.learner.learner import Learner, LearnerSettings
from components.learner.policy import ModelSettings, load_policy
from components.records import Group, Message, Task, Trajectory, Turn
from components.tokens import merge_prefixes
from tests.fakes import save_tiny_policy

PROMPTS = [(256, 110 + index, 10) for index in range(4)]
GROUP_SIZE = 16


def is_right(token):
    return 97 <= token < 129


def roll(policy, prompt, generator):
    """A group of one-token rollouts, sampled exactly from the policy's distribution."""
    with torch.no_grad():
        logits = policy.merged()(torch.tensor([prompt])).logits[0, -1]
    logprobs = logits.log_softmax(-1)
    tokens = torch.multinomial(logprobs.exp(), GROUP_SIZE, replacement=True, generator=generator)
    return [(int(token), float(logprobs[token])) for token in tokens]


def as_group(prompt, sampled, name):
    task = Task(name, instruction="-", environment="one-token", params={})
    trajectories = tuple(
        Trajectory(
            f"{name}-{index}",
            agent="toy",
            turns=(
                Turn(
                    0,
                    observation=(),
                    action=Message("assistant", "-"),
                    prompt_ids=prompt,
                    completion_ids=(token,),
                    logprobs=(logprob,),
                ),
            ),
        )
        for index, (token, logprob) in enumerate(sampled)
    )
    rewards = tuple(float(is_right(token)) for token, _ in sampled)
    return Group(task, trajectories, {"outcome": rewards})


def test_reward_rises(tmp_path):
    started = time.monotonic()
    torch.set_num_threads(1)
    settings = ModelSettings(lora_rank=4, lora_alpha=8.0, dtype="float32")
    policy = load_policy(save_tiny_policy(tmp_path), None, settings)
    learner = Learner(policy, LearnerSettings(learning_rate=1e-2, num_threads=1))
    credit = [plugins.make("credit", "grpo")]
    generator = torch.Generator().manual_seed(0)
    rewards, differences = [], []
    for step in range(30):
        groups = [
            as_group(prompt, roll(policy, prompt, generator), f"{step}-{place}")
            for place, prompt in enumerate(PROMPTS)
        ]
        rewards.append(sum(sum(each.rewards["outcome"]) for each in groups) / 64)
        samples = [
            sample
            for each in groups
            for sample in assign(
                each, [s for t in each.trajectories_G for s in merge_prefixes(t)], credit
            ).samples
        ]
        metrics = learner.update(samples)
        if metrics.logprob_difference_max is not None:
            differences.append(metrics.logprob_difference_max)
    early, late = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert early < 0.4, rewards
    assert late > 0.9, rewards
    # Sampler and trainer are the same weights by two ways of computing.
    assert max(differences) < 1e-4
    assert time.monotonic() - started < 30

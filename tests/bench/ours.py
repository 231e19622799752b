"""Our side of the learner benchmark: a whole GRPO step as the night does it, and the update alone on given tokens.

A whole step: merge the adapter, sample with the rollout engine, group, reward, assign credit, update.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

from components.credit.grpo import Grpo
from components.credit.order import assign
from components.learner.learner import Learner, LearnerSettings
from components.learner.loss import LossSettings
from components.learner.policy import ModelSettings, Policy, load_policy, use_threads
from components.protocols import Completion, Sampling
from components.records import Group, Message, Sample, Task, Trajectory, Turn
from components.rollout.transformers_engine import EngineSettings, TransformersEngine
from components.tokens import merge_prefixes
from tests.bench.workload import Workload, load, samples

LEARNING_RATE = 1e-4
MAX_PACK_TOKENS = 1600
"""As in flows/settings.py."""


def make_policy(workload: Workload) -> Policy:
    settings = ModelSettings(workload.rank, workload.alpha, workload.dtype)
    return load_policy(Path(workload.model_dir), None, settings)


def make_learner(policy: Policy, threads: int, **more: Any) -> Learner:
    settings = LearnerSettings(
        learning_rate=LEARNING_RATE,
        max_pack_tokens=MAX_PACK_TOKENS,
        num_threads=threads,
        loss=LossSettings(aggregation="sequence_mean"),
        **more,
    )
    return Learner(policy, settings)


def update(arguments: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each update on the workload's tokens; the first is not counted."""
    workload = load(arguments["workload"])
    use_threads(workload.threads)
    learner = make_learner(make_policy(workload), workload.threads)
    batch = samples(workload)
    made = [learner.update(batch) for _ in range(workload.steps + 1)]
    return {
        "seconds": [each.seconds for each in made[1:]],
        "model_tokens": made[-1].num_computed_tokens,
    }


def whole_step(arguments: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each step, and of its parts; the first is not counted."""
    workload = load(arguments["workload"])
    use_threads(workload.threads)
    policy = make_policy(workload)
    learner = make_learner(policy, workload.threads)
    whole, sampling, updating = [], [], []
    for step in range(workload.steps + 1):
        begun = time.perf_counter()
        completions_PG = asyncio.run(sample(workload, policy, step))
        sampled = time.perf_counter()
        batch = credited(workload, completions_PG)
        metrics = learner.update(batch)
        whole.append(time.perf_counter() - begun)
        sampling.append(sampled - begun)
        updating.append(whole[-1] - sampling[-1])
    return {
        "whole": whole[1:],
        "sampling": sampling[1:],
        "update": updating[1:],
        "tokens": metrics.num_tokens,
        "model_tokens": metrics.num_computed_tokens,
        "logprob_difference_mean": metrics.logprob_difference_mean,
    }


async def sample(workload: Workload, policy: Policy, step: int) -> list[list[Completion]]:
    """Completions of full length: no token stops them."""
    groups = len(workload.completions_PG[0])
    num_rows = groups * len(workload.prompts_P)
    length = workload.completion_tokens
    room = max(map(len, workload.prompts_P)) + length
    settings = EngineSettings(num_slots=num_rows, slot_tokens=room)
    engine = TransformersEngine(policy.merged(), f"step-{step}", settings)
    asked = [
        engine.sample(prompt, Sampling(length, seed=step * num_rows + place * groups + each))
        for place, prompt in enumerate(workload.prompts_P)
        for each in range(groups)
    ]
    flat = await asyncio.gather(*asked)
    return [flat[start : start + groups] for start in range(0, num_rows, groups)]


def credited(workload: Workload, completions_PG: list[list[Completion]]) -> list[Sample]:
    """Samples with the streams of GRPO; every second completion is rewarded, as in TRL's run."""
    made: list[Sample] = []
    for number, (prompt, group) in enumerate(zip(workload.prompts_P, completions_PG, strict=True)):
        task = Task(f"prompt-{number}", "-", "none", {})
        trajectories = tuple(
            _trajectory(f"{task.id}-{place}", prompt, each) for place, each in enumerate(group)
        )
        rewards = {"alternating": tuple(float(place % 2) for place in range(len(group)))}
        flat = [each for trajectory in trajectories for each in merge_prefixes(trajectory)]
        made += assign(Group(task, trajectories, rewards), flat, [Grpo()]).samples
    return made


def _trajectory(name: str, prompt: list[int], drawn: Completion) -> Trajectory:
    turn = Turn(
        0,
        (),
        Message("assistant", "-"),
        prompt_ids=tuple(prompt),
        completion_ids=drawn.completion_ids,
        logprobs=drawn.logprobs,
        policy_version=drawn.policy_version,
    )
    return Trajectory(name, "bench", (turn,))

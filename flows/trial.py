"""What a bundle is worth: a short training on it, then how often the policy does what a person did on held-out failures.

    P = mean over held-out conversations of the share of decision points whose action it reproduces exactly

Each trial starts from the same base policy with the same seed and takes the same number of optimizer steps, so two
bundles differ in their data alone.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice
from statistics import fmean

from components.errors import ModelCallError, RecordError
from components.evaluation.replay import DecisionPoint, decision_points, match_scores
from components.learner import heap
from components.learner.learner import Learner, epochs
from components.protocols import Sampling
from components.records import Bundle, Message, Trajectory
from flows import policies
from flows.imitate import imitation_samples, learner_settings, tools_of
from flows.resources import Resources

MAX_HELDOUT = 24
"""Held-out conversations that a strategy is tried on."""


def try_bundle(r: Resources, bundle: Bundle, heldout: Sequence[Trajectory]) -> dict[str, float]:
    """Held-out conversation -> share of its decision points reproduced; empty when the bundle trains nothing."""
    policy = policies.load(r, None)
    samples = imitation_samples(r, bundle, policies.renderer_of(r, policy), None)
    if not samples:
        return {}
    section = r.settings.train.sft
    steps = r.settings.curation.score_steps
    rate = learner_settings(r, section.lr, section.warmup_steps, total_steps=steps)
    learner = Learner(policy, rate)
    endless = cycle(epochs(samples, section.batch, steps, r.settings.seed))
    for batch in r.track(list(islice(endless, steps)), "trying a strategy"):
        learner.update(batch)
    heap.release()
    chosen = list(heldout)[:MAX_HELDOUT]
    points = [point for trajectory in chosen for point in decision_points(trajectory)]
    actor = policies.actor_of(r, policy, f"trial-{bundle.id[:12]}")
    scores = match_scores(points, predict(r, actor, points))
    return {
        conversation: fmean(known)
        for conversation, row in scores.items()
        if (known := [score for score in row if score is not None])
    }


def predict(
    r: Resources, actor: policies.Actor, points: Sequence[DecisionPoint]
) -> dict[str, Message]:
    """Decision point -> the action that the policy would take there, greedily.

    A point whose history the policy cannot be shown, as one that is too long, has no prediction.
    """
    tools = tools_of(r)
    sampling = Sampling(max_tokens=r.settings.evaluation.max_tokens, temperature=0.0)
    unseen: list[str] = []

    async def run() -> dict[str, Message]:
        turnstile = asyncio.Semaphore(r.settings.engine.slots)

        async def one(point: DecisionPoint) -> Iterator[tuple[str, Message]]:
            async with turnstile:
                try:
                    prompt = actor.renderer.prompt(point.context, tools)
                    drawn = await actor.engine.sample(prompt, sampling)
                except (ModelCallError, RecordError) as error:
                    unseen.append(str(error))
                    return iter(())
            return iter([(point.id, actor.renderer.parse(drawn.completion_ids).message)])

        return dict(chain.from_iterable(await asyncio.gather(*map(one, points))))

    predictions = asyncio.run(run())
    if unseen:
        r.log(
            f"{len(unseen)} of {len(points)} decision points have no prediction, first: {unseen[0]}"
        )
    return predictions

"""Episodes in batch: tasks with their lessons through an engine, with a progress bar."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from components import plugins
from components.protocols import World
from components.records import Task, Trajectory
from components.rollout.run_groups import Cast, RollOptions, roll
from flows import policies
from flows.resources import Resources


class Episodes(NamedTuple):
    """What is played."""

    world: World
    tasks: Sequence[Task]
    memory: Sequence[str]
    """Recalled lessons of each task, empty for none."""


@dataclass(frozen=True)
class Practice:
    """How it is played."""

    group_size: int
    temperature: float
    max_tokens: int
    seed: int
    what: str
    """Shown beside the progress bar."""


def roll_out(
    r: Resources, actor: policies.Actor, episodes: Episodes, practice: Practice
) -> list[list[Trajectory]]:
    """Trajectories by task, in the order of the tasks."""
    settings = r.settings
    harness = plugins.make(
        "harnesses",
        settings.harness.name,
        settings.harness.options,
        {"max_context_tokens": settings.model.max_context},
    )
    options = RollOptions(
        policy_version=actor.version,
        group_size=practice.group_size,
        max_tokens=practice.max_tokens,
        temperature=practice.temperature,
        seed=practice.seed,
        max_concurrency=settings.engine.slots,
        agent=settings.agent,
        memory_of_task={
            task.id: block for task, block in zip(episodes.tasks, episodes.memory, strict=True)
        },
    )
    cast = Cast(harness, episodes.world, actor.engine, actor.renderer)
    total = len(episodes.tasks) * practice.group_size
    with r.progress(practice.what, total) as advance:
        return asyncio.run(
            roll(episodes.tasks, cast, options, on_progress=lambda _done, _all: advance(1))
        )

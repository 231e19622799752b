"""Run every task G times: groups of trajectories, in the order of the tasks, with bounded concurrency.

Every episode has a seed of its own, derived from the run's seed, the task and the episode's place in its group, so an
episode does not depend on how many others run beside it. The trajectory's id is a digest of all that decides what the
episode is: policy version, task, place, seed, temperature and what memory it was given. The same run again has the
same ids.

A harness turns failures inside an episode into a stop reason. One that raises all the same loses its episode, not the
run: the trajectory has no turns and the error as its stop reason.

Shapes: _P tasks, _G trajectories of one task.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from components.errors import ConfigError
from components.protocols import Engine, Harness, Renderer, RolloutPlan, Sampling, World
from components.records import Task, Trajectory
from components.serial import digest


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays the episodes."""

    harness: Harness
    world: World
    engine: Engine
    renderer: Renderer


@dataclass(frozen=True, slots=True)
class RollOptions:
    policy_version: str
    group_size: int
    """Episodes of each task."""
    max_tokens: int
    """Most tokens of one action."""
    temperature: float = 1.0
    seed: int = 0
    max_concurrency: int = 48
    """Episodes that run at once; no more than the engine has slots, or their prefixes are forgotten."""
    agent: str = "agent"
    memory_of_task: Mapping[str, str] = field(default_factory=dict)
    """Task id -> recalled lessons; a task without an entry gets none."""
    memory_revision: str | None = None


async def roll(
    tasks: Sequence[Task],
    cast: Cast,
    options: RollOptions,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[list[Trajectory]]:
    """Trajectories by task and place; `on_progress` hears of finished and of all episodes.

    Raises:
        ConfigError: a size below one.
    """
    for name in ("group_size", "max_concurrency", "max_tokens"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(options, name)!r}")
    plans = [
        (task, plan_episode(task, index, options))
        for task in tasks
        for index in range(options.group_size)
    ]
    turnstile = asyncio.Semaphore(options.max_concurrency)
    num_done = 0

    async def play(task: Task, plan: RolloutPlan) -> Trajectory:
        nonlocal num_done
        async with turnstile:
            trajectory = await _episode(task, plan, cast)
        num_done += 1
        if on_progress is not None:
            on_progress(num_done, len(plans))
        return trajectory

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(play(task, plan)) for task, plan in plans]
    flat = [each.result() for each in running]
    return [
        flat[start : start + options.group_size]
        for start in range(0, len(flat), options.group_size)
    ]


def plan_episode(task: Task, index: int, options: RollOptions) -> RolloutPlan:
    """Seed, id and memory of one episode."""
    memory = options.memory_of_task.get(task.id, "")
    seed = int(digest([options.seed, task.id, index])[:15], 16)
    version = options.policy_version
    group = [
        options.agent,
        version,
        task.id,
        options.seed,
        options.temperature,
        options.memory_revision,
        memory,
    ]
    return RolloutPlan(
        trajectory_id=digest([*group, index]),
        sampling=Sampling(options.max_tokens, options.temperature, seed),
        group_id=digest(group),
        memory=memory,
        memory_revision=options.memory_revision,
        agent=options.agent,
    )


async def _episode(task: Task, plan: RolloutPlan, cast: Cast) -> Trajectory:
    try:
        return await cast.harness.run(task, cast.world, cast.engine, cast.renderer, plan)
    except Exception as error:
        name = type(cast.harness).__name__
        return Trajectory(
            id=plan.trajectory_id,
            agent=plan.agent,
            turns=(),
            task_id=task.id,
            group_id=plan.group_id,
            stop_reason=f"error: harness {name} raised {type(error).__name__}: {error}",
            memory_revision=plan.memory_revision,
            split=task.split,
        )

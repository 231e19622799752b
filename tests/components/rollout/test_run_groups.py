"""Groups come back in order, with stable ids and seeds, and one lost episode costs no other."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from components.errors import ConfigError
from components.protocols import Engine, Renderer, RolloutPlan, World
from components.records import Message, Task, Trajectory, Turn
from components.rollout.run_groups import Cast, RollOptions, plan_episode, roll
from components.rollout.scripted import ScriptedEngine
from tests.components.rollout.test_scripted import CodeRenderer
from tests.fakes_world import BoxWorld

OPTIONS = RollOptions(policy_version="v1", group_size=3, max_tokens=16, seed=5)


class SleepyHarness:
    """Takes a different number of event-loop turns for every episode and notes how many run at once."""

    def __init__(self, broken_task: str | None = None) -> None:
        self.running = self.most = 0
        self.broken_task = broken_task

    async def run(
        self, task: Task, world: World, engine: Engine, renderer: Renderer, plan: RolloutPlan
    ) -> Trajectory:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(plan.sampling.seed % 7):
            await asyncio.sleep(0)
        self.running -= 1
        if task.id == self.broken_task:
            raise KeyError("shelf")
        action = Message("assistant", f"{plan.sampling.seed}")
        return Trajectory(
            plan.trajectory_id, plan.agent, (Turn(0, (), action),), task.id, plan.group_id
        )


def cast(harness: SleepyHarness) -> Cast:
    renderer = CodeRenderer()
    return Cast(harness, BoxWorld(), ScriptedEngine([]), renderer)


def tasks(num: int) -> list[Task]:
    return [task for task, _ in BoxWorld().tasks(num, "train", Random(0))]


def test_groups_are_in_the_order_of_tasks_and_places() -> None:
    some = tasks(4)
    groups_PG = asyncio.run(roll(some, cast(SleepyHarness()), OPTIONS))
    assert [[each.task_id for each in group] for group in groups_PG] == [
        [task.id] * 3 for task in some
    ]
    for task, group in zip(some, groups_PG, strict=True):
        expected = [plan_episode(task, index, OPTIONS).trajectory_id for index in range(3)]
        assert [each.id for each in group] == expected
        assert len({each.group_id for each in group}) == 1
    assert len({each.group_id for group in groups_PG for each in group}) == 4


def test_concurrency_is_bounded_and_changes_nothing() -> None:
    some, narrow, wide = tasks(4), SleepyHarness(), SleepyHarness()
    one = asyncio.run(roll(some, cast(narrow), replace(OPTIONS, max_concurrency=1)))
    five = asyncio.run(roll(some, cast(wide), replace(OPTIONS, max_concurrency=5)))
    assert one == five
    assert (narrow.most, wide.most) == (1, 5)


def test_ids_and_seeds_depend_on_all_that_decides_an_episode() -> None:
    task, other = tasks(2)
    plan = plan_episode(task, 0, OPTIONS)
    assert plan == plan_episode(task, 0, OPTIONS)
    plans = [
        plan,
        plan_episode(task, 1, OPTIONS),
        plan_episode(other, 0, OPTIONS),
        plan_episode(task, 0, replace(OPTIONS, seed=6)),
    ]
    assert len({each.sampling.seed for each in plans}) == 4
    variants = [
        *plans,
        plan_episode(task, 0, replace(OPTIONS, policy_version="v2")),
        plan_episode(task, 0, replace(OPTIONS, temperature=0.5)),
        plan_episode(task, 0, replace(OPTIONS, memory_of_task={task.id: "look twice"})),
    ]
    assert len({each.trajectory_id for each in variants}) == 7


def test_every_episode_of_a_task_gets_its_memory() -> None:
    task, other = tasks(2)
    options = replace(OPTIONS, memory_of_task={task.id: "look twice"}, memory_revision="r4")
    assert plan_episode(task, 2, options).memory == "look twice"
    assert plan_episode(other, 2, options).memory == ""
    assert plan_episode(other, 2, options).memory_revision == "r4"


def test_a_harness_that_raises_loses_its_episodes_only() -> None:
    good, bad = tasks(2)
    groups_PG = asyncio.run(roll([bad, good], cast(SleepyHarness(bad.id)), OPTIONS))
    assert [each.stop_reason for each in groups_PG[0]] == [
        "error: harness SleepyHarness raised KeyError: 'shelf'"
    ] * 3
    assert [each.turns for each in groups_PG[0]] == [()] * 3
    assert groups_PG[0][0].group_id == plan_episode(bad, 0, OPTIONS).group_id
    assert [each.stop_reason for each in groups_PG[1]] == [None] * 3


def test_progress_counts_every_episode() -> None:
    heard: list[tuple[int, int]] = []
    asyncio.run(
        roll(tasks(2), cast(SleepyHarness()), OPTIONS, lambda done, all: heard.append((done, all)))
    )
    assert heard == [(done, 6) for done in range(1, 7)]


def test_no_tasks_give_no_groups() -> None:
    assert asyncio.run(roll([], cast(SleepyHarness()), OPTIONS)) == []


@pytest.mark.parametrize("name", ["group_size", "max_concurrency", "max_tokens"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        asyncio.run(roll(tasks(1), cast(SleepyHarness()), replace(OPTIONS, **{name: 0})))

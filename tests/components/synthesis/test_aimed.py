from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from components.environments.help_desk import HelpDesk
from components.errors import ConfigError
from components.plugins import make
from components.records import (
    FailureMode,
    Lineage,
    ModeStatus,
    ReferenceSolution,
    Task,
    Trajectory,
    Verdict,
)
from components.synthesis.aimed import Aimed, mode_weights, passes_gate
from tests.fakes_world import BoxWorld

LINEAGE = Lineage((), "mining/modes", "1", "rule", "")


def mode(tool: str, counts: dict[str, int], status: ModeStatus = "recurring") -> FailureMode:
    return FailureMode(f"m-{tool}", tool, "", f"wrong_tool|{tool}|", status, counts, LINEAGE)


@dataclass(frozen=True)
class Twisted:
    """A box world with a twist: `reference` spoils the solutions, `idle` lets doing nothing pass, `split` mislabels."""

    twist: str
    inner: BoxWorld

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        return self.inner.tools

    def tasks(self, num: int, split: Any, rng: Random, skill_weights: Any = None) -> Any:
        pairs = self.inner.tasks(num, split, rng, skill_weights)
        if self.twist == "reference":
            return [(t, ReferenceSolution(t.id, r.actions[-1:])) for t, r in pairs]
        return [(replace(t, split="dev"), r) for t, r in pairs] if self.twist == "split" else pairs

    def open(self, task: Task) -> Any:
        return self.inner.open(task)

    def verify(self, task: Task, trajectory: Trajectory) -> Verdict:
        verdict = self.inner.verify(task, trajectory)
        return replace(verdict, success=True) if self.twist == "idle" else verdict


def test_weights_are_tonights_counts_times_status() -> None:
    """Tonight is the last night anywhere, 01-02: 4 cases new x 1, 4 growing x 1.5, fixed x 0; `gone` has none tonight."""
    modes = [
        mode("a", {"2026-01-02": 4}, "new"),
        mode("b", {"2026-01-01": 1, "2026-01-02": 4}, "growing"),
        mode("c", {"2026-01-02": 9}, "fixed"),
        mode("gone", {"2026-01-01": 5}),
    ]
    assert mode_weights(modes) == {"m-a": 4.0, "m-b": 6.0, "m-c": 0.0, "m-gone": 0.0}
    assert mode_weights([]) == {}


def test_tasks_go_where_the_modes_are() -> None:
    """40 places, none of them routine, go to two modes with 30 and 10 cases, so 30 and 10."""
    world = HelpDesk()
    modes = [
        mode("cancel_order", {"n": 30}),
        mode("send_voucher", {"n": 10}),
        mode("get_product", {"n": 0}),
    ]
    pairs = Aimed(routine_rate=0.0).propose(modes, world, 40, Random(5))
    assert len(pairs) == 40
    assert len({task.id for task, _ in pairs}) == 40
    cancel = [task for task, _ in pairs if "m-cancel_order" in task.modes]
    voucher = [task for task, _ in pairs if "m-send_voucher" in task.modes]
    assert all("cancel_order" in task.required_skills for task in cancel)
    assert all("send_voucher" in task.required_skills for task in voucher)
    assert (len(cancel), len(voucher)) == (30, 10)
    assert all(task.split == "train" for task, _ in pairs)
    lineage = cancel[0].lineage
    assert lineage is not None
    assert lineage.plugin == "synthesis/aimed"
    assert "m-cancel_order" in lineage.parents


def test_routine_places_are_filled_as_the_world_draws() -> None:
    """All tasks of `send_voucher` are aimed; half of 200 places are routine.

    The world's own share s is counted on 600 tasks. In the 100 routine places at most four standard deviations of a
    share near 0.1 (0.03 each) away from it; in all 200 places 0.5 + s / 2.
    """
    world, modes = HelpDesk(), [mode("send_voucher", {"n": 5})]

    def share(pairs: list[tuple[Task, ReferenceSolution]]) -> float:
        return sum("send_voucher" in task.required_skills for task, _ in pairs) / len(pairs)

    own = share(world.tasks(600, "train", Random(9)))
    assert 0.02 < own < 0.3
    pairs = Aimed(routine_rate=0.5).propose(modes, world, 200, Random(4))
    assert share(pairs) == pytest.approx(0.5 + own / 2, abs=0.06)
    assert share(Aimed(routine_rate=1.0).propose(modes, world, 200, Random(4))) == pytest.approx(
        own, abs=0.09
    )


def test_aimed_tasks_are_drawn_more_often_than_plain_ones() -> None:
    world = HelpDesk()
    plain = world.tasks(200, "train", Random(1))
    share = sum("cancel_order" in task.required_skills for task, _ in plain) / 200
    pairs = Aimed(routine_rate=0.0).propose([mode("cancel_order", {"n": 3})], world, 30, Random(1))
    assert sum("cancel_order" in task.required_skills for task, _ in pairs) / 30 > 2 * share


def test_same_seed_same_tasks() -> None:
    modes = [mode("cancel_order", {"n": 3})]
    first = Aimed().propose(modes, HelpDesk(), 10, Random(2))
    assert first == Aimed().propose(modes, HelpDesk(), 10, Random(2))


@pytest.mark.parametrize("modes", [[], [mode("fly", {"n": 3})], [mode("peek", {"n": 3}, "fixed")]])
def test_without_usable_modes_tasks_are_routine(modes: list[FailureMode]) -> None:
    pairs = Aimed().propose(modes, BoxWorld(), 5, Random(1))
    assert len(pairs) == 5
    assert all(task.modes == () for task, _ in pairs)


@pytest.mark.parametrize("twist", ["reference", "idle", "split"])
def test_gate_refuses_tasks_that_prove_nothing(twist: str) -> None:
    world = Twisted(twist, BoxWorld())
    assert Aimed().propose([], world, 4, Random(1)) == []


def test_gate_accepts_sound_tasks() -> None:
    world = BoxWorld()
    assert all(passes_gate(world, task, ref) for task, ref in world.tasks(5, "train", Random(1)))


def test_evaluation_tasks_are_never_proposed() -> None:
    """The same seed draws the same 8 candidates for 4 places; two of them are held out, by id and by words."""
    world = BoxWorld()
    drawn = [task for task, _ in world.tasks(8, "train", Random(1))]
    held_out = (drawn[0].id, f"  {drawn[1].instruction.upper()} ")
    found = {task.id for task, _ in Aimed(held_out=held_out).propose([], world, 4, Random(1))}
    assert len(found) == 4
    assert not found & {drawn[0].id, drawn[1].id}


def test_nothing_asked_nothing_given() -> None:
    assert Aimed().propose([mode("peek", {"n": 1})], BoxWorld(), 0, Random(1)) == []


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="rounds >= 1"):
        make("synthesis", "aimed", {"rounds": 0})

"""Endings of rollouts before and after, counted in pairs."""

from components.evaluation.confusion import columns, confuse, endings
from components.records import FailureCase, Lineage, Trajectory

BEFORE = ["loop", "loop", "loop", "cut_off", "solved"]
AFTER = ["solved", "loop", "solved", "loop", "cut_off"]


def test_pairs_are_counted_and_frequent_endings_come_first() -> None:
    """By hand: loop -> solved twice, loop -> loop once, cut_off -> loop, solved -> cut_off."""
    made = confuse(BEFORE, AFTER)
    assert made == {
        "loop": {"solved": 2, "loop": 1},
        "cut_off": {"loop": 1},
        "solved": {"cut_off": 1},
    }
    assert next(iter(made)) == "loop"
    assert columns(made) == ["solved", "loop", "cut_off"]


def test_every_rollout_is_in_exactly_one_cell() -> None:
    made = confuse(BEFORE, AFTER)
    assert sum(sum(row.values()) for row in made.values()) == len(BEFORE)


def test_nothing_evaluated_is_nothing() -> None:
    assert confuse([], []) == {}
    assert columns({}) == []


def case(trajectory_id: str, signature: str) -> FailureCase:
    lineage = Lineage((), "mining/rules", "1", "rule", "")
    return FailureCase(trajectory_id, trajectory_id, 1, "model", signature, "Words.", (), lineage)


def ended(name: str, outcome: bool | None) -> Trajectory:
    return Trajectory(name, "agent", (), outcome=outcome)


def test_an_ending_is_the_kind_that_the_miner_found() -> None:
    """A case about a rollout that was solved all the same does not make it a failure."""
    items = [ended("lost", False), ended("odd", False), ended("fine", True), ended("open", None)]
    cases = [case("lost", "wrong_tool|get_order|"), case("fine", "loop||")]
    assert endings(items, cases) == ["wrong_tool", "unexplained", "solved", "not judged"]

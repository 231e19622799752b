"""What one practice round gives to the learner, and how many tasks it rolls out together."""

from types import SimpleNamespace
from typing import Any

import pytest

from components.records import Group, Message, Sample, Task, Trajectory, Turn
from flows.practice import Played, Rounds, learn_rates, step_batches, wave
from flows.settings import Rl

PROMPT, ACTION = (1, 2, 3), (7, 8)


def group(name: str, *rewards: float) -> Group:
    """Trajectories of one turn each; token ids of the action are the same for all."""
    trajectories = tuple(
        Trajectory(
            f"{name}-{place}",
            "agent",
            (
                Turn(
                    0,
                    (Message("user", "words"),),
                    Message("assistant", "done"),
                    "policy",
                    prompt_ids=PROMPT,
                    completion_ids=ACTION,
                    logprobs=(-0.5, -0.5),
                ),
            ),
        )
        for place, _ in enumerate(rewards)
    )
    return Group(Task(name, "words", "toy", {}), trajectories, {"verified": rewards})


def anchors(num: int) -> list[Sample]:
    return [
        Sample(f"anchor-{n}", (1, 2), (False, True), ce_weights_T=(0.0, 1.0)) for n in range(num)
    ]


def resources(**options: Any) -> Any:
    rl = Rl.model_validate({"credit": [{"name": "grpo"}], **options})
    return SimpleNamespace(settings=SimpleNamespace(seed=7, train=SimpleNamespace(rl=rl)))


def ids(batch: list[Sample], start: str) -> list[str]:
    return [sample.trajectory_id for sample in batch if sample.trajectory_id.startswith(start)]


def test_every_group_is_in_exactly_one_step_of_its_round_and_every_step_has_anchors() -> None:
    groups = [group(name, 1.0, 0.0) for name in ("a", "b", "c")]
    r = resources(updates=2, anchor_batch=2)
    batches = step_batches(r, Played(groups, [], {}), anchors(5), done=0)
    assert [[sample.trajectory_id for sample in batch][:-2] for batch in batches] == [
        ["a-0", "a-1", "c-0", "c-1"],
        ["b-0", "b-1"],
    ]
    assert all(len(ids(batch, "anchor")) == 2 for batch in batches)


def test_steps_of_later_rounds_take_other_anchors() -> None:
    r = resources(updates=2, anchor_batch=3)
    drawn = [
        tuple(ids(batch, "anchor"))
        for done in range(3)
        for batch in step_batches(r, Played([], [], {}), anchors(40), done)
    ]
    assert len(set(drawn)) == 6


def test_a_solved_group_is_imitated_once_and_only_where_the_policy_acted() -> None:
    played = Played([group("open", 1.0, 0.0)], [group("sure", 1.0, 1.0)], {})
    (batch,) = step_batches(resources(updates=1, anchor_batch=0), played, [], done=0)
    held = [sample for sample in batch if sample.trajectory_id.startswith("sure")]
    assert [sample.trajectory_id for sample in held] == ["sure-0"]
    assert held[0].ce_weights_T == (0.0, 0.0, 0.0, 1.0, 1.0)
    assert held[0].advantages_T is None
    assert all(s.ce_weights_T is None for s in batch if s.trajectory_id.startswith("open"))


def test_holding_solved_tasks_can_be_turned_off() -> None:
    played = Played([], [group("sure", 1.0, 1.0)], {})
    assert step_batches(
        resources(updates=1, anchor_batch=0, hold_solved=False), played, [], done=0
    ) == [[]]


@pytest.mark.parametrize(
    ("missing", "left", "flat", "expected"),
    [
        (8, 12, None, 12),  # half expected to have a signal: 16, but 12 are left
        (8, 40, None, 16),
        (8, 40, 0.2, 10),
        (8, 40, 0.0, 8),
        (8, 12, 1.0, 12),  # no group of the last round had a signal: as many as are left
        (1, 5, 0.5, 2),
    ],
)
def test_a_wave_is_as_large_as_the_last_round_says_it_takes(
    missing: int, left: int, flat: float | None, expected: int
) -> None:
    curve = [] if flat is None else [{"zero_variance_rate": flat}]
    assert wave(missing, left, Rounds(curve=curve)) == expected


def test_a_tasks_success_moves_its_skill_set_and_its_skills_half_way() -> None:
    """Of `b`: first 0.5, then half way to 0.0, which is 0.25. A set is the same in any order, and no skill's own name."""
    rates: dict[str, float] = {}
    learn_rates(rates, Task("t1", "words", "toy", {}, required_skills=("a", "b")), 0.5)
    learn_rates(rates, Task("t2", "words", "toy", {}, required_skills=("b",)), 0.0)
    learn_rates(rates, Task("t3", "words", "toy", {}, required_skills=("b", "a")), 1.0)
    # `a`: 0.5, then 0.75. `b`: 0.5, 0.25, then 0.625. `{a, b}`: 0.5, then 0.75; `{b}`: 0.0 alone.
    assert rates == {
        "t1": 0.5, "t2": 0.0, "t3": 1.0, "a": 0.75, "b": 0.625, "{a, b}": 0.75, "{b}": 0.0,
    }  # fmt: skip


def test_what_nobody_judged_moves_no_rate() -> None:
    rates: dict[str, float] = {}
    learn_rates(rates, Task("t1", "words", "toy", {}, required_skills=("a",)), None)
    assert rates == {}

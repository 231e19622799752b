"""The host builds bundles from references, and refuses what did not happen."""

from dataclasses import replace
from typing import Any

import pytest

from components.curation._contract import Curated, bundle_from
from components.curation.strategy_zero import strategy_zero
from components.errors import UnsafeStrategy
from components.records import Dropped, Message, RolloutRequest, Trajectory
from components.tokens import orphan_results
from tests.components.curation.conversations import (
    LINEAGE,
    OPENING,
    call,
    case_of,
    corrected,
    corrected_midway,
    failed,
    result,
    say,
    success,
    turns,
)

STRATEGY = strategy_zero()


def build(value: Any, *trajectories: Trajectory) -> Curated:
    cases = [case_of(item) for item in trajectories if item.outcome is False]
    return bundle_from(value, STRATEGY, trajectories, cases, LINEAGE)


def sft(trajectory_id: str, places: list[int], targets: list[int], **more: Any) -> dict[str, Any]:
    named = {"kind": "sft", "trajectory_id": trajectory_id, "turns": places, "targets": targets}
    return {**named, **more}


def rejection(example: dict[str, Any], trajectory: Trajectory) -> str:
    curated = build({"examples": [example]}, trajectory)
    assert curated.bundle.examples == ()
    (reason,) = curated.rejected
    return reason


def test_a_correction_is_rebuilt_byte_for_byte() -> None:
    """Places 2, 3, 4 are the person's: system, user, call, result, call, result, reply; actions at 2, 4 and 6."""
    trajectory = corrected()
    bundle = build(
        {"examples": [sft("fixed", [2, 3, 4], [2, 3, 4], mode_ids=["m1"])]}, trajectory
    ).bundle
    (example,) = bundle.examples
    person = trajectory.turns[2:]
    assert example.messages == tuple(m for turn in person for m in (*turn.observation, turn.action))
    assert example.targets == (2, 4, 6)
    assert example.mode_ids == ("m1",)
    assert bundle.lineage.parents == ("fixed",)
    assert bundle.dropped == ()


def test_history_before_a_takeover_is_kept_and_its_result_is_no_orphan() -> None:
    """Turn 0 of the policy, then the person from place 2: targets are the person's actions alone, at 4 and 6."""
    (example,) = build(
        {"examples": [sft("midway", [0, 2, 3], [2, 3])]}, corrected_midway()
    ).bundle.examples
    assert [message.role for message in example.messages] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert example.targets == (4, 6)
    assert orphan_results(example.messages) == ()


def test_orphan_tool_results_are_left_out_and_nothing_else() -> None:
    """The log starts with a result whose call is gone; targets move with the messages."""
    trajectory = success(opening=(result("stale", "gone", ("orphan tool result",)), *OPENING))
    (example,) = build({"examples": [sft("ok", [0, 1], [0, 1])]}, trajectory).bundle.examples
    assert [message.text for message in example.messages][:2] == ["Be kind.", "Cancel order O1."]
    assert example.targets == (2, 4)


def test_only_tool_results_are_cut() -> None:
    long = "x" * 50
    own = turns(((Message("user", long),), call("look")), ((result(long),), say(long)))
    trajectory = Trajectory("long", "desk", own, outcome=True)
    item = sft("long", [0, 1], [0, 1], max_observation_chars=16)
    (example,) = build({"examples": [item]}, trajectory).bundle.examples
    assert [len(message.text) for message in example.messages] == [50, 0, 16, 50]


def test_a_preference_needs_the_same_view_and_another_action() -> None:
    pair = {**sft("fixed", [2], [2]), "kind": "preference", "rejected_turn": 0}
    (example,) = build({"examples": [pair]}, corrected()).bundle.examples
    assert example.rejected == corrected().turns[0].action
    other_view = rejection({**pair, "rejected_turn": 1}, corrected())
    assert "rejected turn 1 and target 2 did not see the same" in other_view
    assert "did the same" in rejection({**pair, "rejected_turn": 2}, corrected())
    assert "needs a rejected turn below 5" in rejection(
        {**pair, "rejected_turn": None}, corrected()
    )
    assert "has a rejected turn" in rejection({**pair, "kind": "sft"}, corrected())


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (
            sft("ghost", [0], [0]),
            "example 0 of trajectory 'ghost': names trajectory 'ghost', which is not in",
        ),
        (
            sft("fixed", [0, 1], [0]),
            "target 0 is an action of the policy in a conversation with outcome False",
        ),
        (sft("fixed", [3, 4], [3]), "turn 3 does not follow: expected turn 0"),
        (sft("fixed", [2, 4], [2]), "turn 4 does not follow: expected turn 3"),
        (sft("fixed", [0, 3], [3]), "turn 3 does not follow: expected turn 1"),
        (sft("fixed", [3, 2], [2]), "must rise"),
        (sft("fixed", [2, 9], [2]), "must rise and stay below 5"),
        (sft("fixed", [2], [3]), "target 3 is not among its turns [2]"),
        (sft("fixed", [2], [2], mode_ids=["m9"]), "names failure mode 'm9'"),
        (sft("fixed", [2], [2], weight=-1.0), "weight: Input should be greater than 0"),
        (sft("fixed", [2], [2], weight=float("nan")), "weight: Input should be"),
        (sft("fixed", [2], [2], weight=9.0), "weight: Input should be less than or equal to 8"),
        (sft("fixed", [2], [2], messages=["made up"]), "messages: Extra inputs are not permitted"),
        (sft("fixed", [], []), "turns: List should have at least 1 item"),
        (sft("fixed", [True], [2]), "turns.0: Input should be a valid integer"),
        (
            {**sft("fixed", [2], [2]), "kind": "dpo"},
            "kind: Input should be 'sft', 'preference' or 'anchor'",
        ),
    ],
)
def test_an_example_that_did_not_happen_is_rejected(item: dict[str, Any], reason: str) -> None:
    assert reason in rejection(item, corrected())


def test_a_policy_cannot_jump_between_equal_views() -> None:
    """Both later turns saw the same error, but nobody took over, so turn 1 must not be skipped."""
    own = turns(
        (OPENING, call("a")), ((result("error"),), call("a")), ((result("error"),), say("Done."))
    )
    trajectory = Trajectory("t", "desk", own, outcome=True)
    assert "turn 2 does not follow" in rejection(sft("t", [0, 2], [2]), trajectory)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (call("look", '{"id": '), "call of 'look': invalid arguments"),
        (call("look", ""), "call of 'look': empty arguments"),
        (say("  "), "empty action"),
        (replace(say("look {"), marks=("unparsable: broken",)), "unparsable: broken"),
    ],
)
def test_malformed_actions_are_never_targets(action: Message, reason: str) -> None:
    trajectory = Trajectory("t", "desk", turns((OPENING, action)), outcome=True)
    assert f"target 0 is malformed: {reason}" in rejection(sft("t", [0], [0]), trajectory)


def test_siblings_of_a_rejected_item_stand() -> None:
    value = {"examples": [sft("ghost", [0], [0]), sft("ok", [0, 1], [1]), 7]}
    curated = build(value, success(), failed())
    assert [example.trajectory_id for example in curated.bundle.examples] == ["ok"]
    assert [reason.split(":")[0] for reason in curated.rejected] == [
        "example 0 of trajectory 'ghost'",
        "example 2",
    ]


def test_every_trajectory_without_example_has_a_reason() -> None:
    """The host's own reason where an example was rejected, then the strategy's, then none."""
    value = {
        "examples": [sft("fixed", [0], [0]), sft("ok", [0, 1], [1])],
        "dropped": [
            {"trajectory_id": "lost", "reason": "too short"},
            {"trajectory_id": "x", "reason": "?"},
        ],
    }
    curated = build(value, success(), corrected(), failed(), failed("mute"))
    assert [item.trajectory_id for item in curated.bundle.dropped] == ["fixed", "lost", "mute"]
    assert curated.bundle.dropped[1:] == (
        Dropped("lost", "too short"),
        Dropped("mute", "no reason given"),
    )
    assert "outcome False" in curated.bundle.dropped[0].reason
    assert "'x', which is not in the corpus" in curated.rejected[-1]


def test_practice_names_known_tools_and_its_failures() -> None:
    known = {
        "skills": ["cancel_order"],
        "weight": 0.5,
        "mode_ids": ["m1"],
        "trajectory_ids": ["fixed"],
    }
    value = {"rl": [known, {**known, "skills": ["fly"]}, {**known, "trajectory_ids": []}]}
    curated = build(value, corrected())
    assert curated.bundle.rl == (RolloutRequest(("cancel_order",), 0.5, ("m1",)),)
    assert curated.bundle.lineage.parents == ("fixed",)
    assert any("wants skill 'fly'" in reason for reason in curated.rejected)
    assert any(
        "trajectory_ids: List should have at least 1 item" in reason for reason in curated.rejected
    )


def test_memory_names_known_trajectories_once() -> None:
    curated = build({"memory": ["fixed", "fixed", "ghost", 3]}, corrected())
    assert curated.bundle.memory_trajectories == ("fixed",)
    assert len(curated.rejected) == 2


def test_the_same_example_twice_is_one() -> None:
    curated = build({"examples": [sft("ok", [0], [0]), sft("ok", [0], [0])]}, success())
    assert len(curated.bundle.examples) == 1
    assert "is the same as an earlier one" in curated.rejected[0]


@pytest.mark.parametrize("value", [None, [], {"samples": []}, {"examples": "all"}])
def test_another_shape_is_refused_whole(value: Any) -> None:
    with pytest.raises(UnsafeStrategy, match="broke its contract"):
        build(value, success())


def test_more_than_twice_the_corpus_is_refused() -> None:
    """Two turns allow four targets; with weights as the only difference there are six."""
    items = [sft("ok", [0, 1], [0, 1], weight=weight) for weight in (1.0, 2.0, 3.0)]
    with pytest.raises(UnsafeStrategy, match=r"6 target turns, more than twice the corpus \(4\)"):
        build({"examples": items}, success())


def test_equal_content_has_an_equal_id() -> None:
    value = {"examples": [sft("ok", [0], [0])]}
    assert build(value, success()).bundle.id == build(value, success()).bundle.id
    assert build(value, success()).bundle.id != build({}, success()).bundle.id

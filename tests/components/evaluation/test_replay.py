"""Held-out decision points: where they lie, and how predictions are scored."""

from dataclasses import replace

import pytest

from components.evaluation.replay import decision_points, logprob_scores, match_scores, matches
from components.records import Feedback, Message, ToolCall, Trajectory, Turn

OPENING = (Message("user", "Cancel O1."),)


def call(name: str, arguments: str = "{}", call_id: str = "c") -> Message:
    return Message("assistant", None, (ToolCall(call_id, name, arguments),))


def corrected() -> Trajectory:
    """Right at 0, wrong at 1, a person from turn 1 on; the copy of the result is marked an orphan, as a reader may."""
    seen = Message("tool", "open", tool_call_id="c")
    copy = replace(seen, marks=("orphan tool result",))
    turns = (
        Turn(0, OPENING, call("get_order")),
        Turn(1, (seen,), Message("assistant", "No.")),
        Turn(2, (copy,), call("cancel_order", '{"id": "O1"}', "h"), executor="human"),
        Turn(
            3,
            (Message("tool", "ok", tool_call_id="h"),),
            Message("assistant", "Done."),
            executor="human",
        ),
    )
    edit = Feedback("user", "edit", turn=1)
    return Trajectory("t", "desk", turns, outcome=False, feedback=(edit,))


def test_a_person_took_the_decisions_that_count() -> None:
    points = decision_points(corrected())
    assert [point.id for point in points] == ["t#2", "t#3"]
    assert points[0].context == (
        *OPENING,
        call("get_order"),
        Message("tool", "open", tool_call_id="c"),
    )
    assert points[1].context[3] == points[0].recorded


def test_without_a_note_the_latest_equal_view_is_the_takeover() -> None:
    assert decision_points(replace(corrected(), feedback=())) == decision_points(corrected())


def test_a_person_who_goes_on_replaces_nothing() -> None:
    turns = (
        Turn(0, OPENING, Message("assistant", "Wait.")),
        Turn(1, (Message("user", "Well?"),), Message("assistant", "Done."), executor="human"),
    )
    (point,) = decision_points(Trajectory("t", "desk", turns))
    assert [message.text for message in point.context] == ["Cancel O1.", "Wait.", "Well?"]


def test_successes_count_and_failures_do_not() -> None:
    turns = (Turn(0, OPENING, Message("assistant", "Done.")),)
    assert [
        point.id for point in decision_points(Trajectory("t", "desk", turns, outcome=True))
    ] == ["t#0"]
    assert decision_points(Trajectory("t", "desk", turns, outcome=False)) == []
    assert decision_points(Trajectory("t", "desk", turns)) == []
    assert decision_points(Trajectory("t", "desk", (), outcome=True)) == []


@pytest.mark.parametrize(
    ("predicted", "recorded", "same"),
    [
        (call("a", '{"x": 1, "y": 2}'), call("a", '{"y":2,"x":1}', "other"), True),
        (call("a", '{"x": 1}'), call("a", '{"x": "1"}'), False),
        (call("b"), call("a"), False),
        (call("a", "{"), call("a"), False),
        (Message("assistant", "a {}"), call("a"), False),
        (call("a"), Message("assistant", "Done."), None),
        (call("a"), call("a", "{"), None),
        (
            replace(call("a"), tool_calls=(*call("a").tool_calls, *call("b").tool_calls)),
            call("a"),
            False,
        ),
    ],
)
def test_matching_actions(predicted: Message, recorded: Message, same: bool | None) -> None:
    assert matches(predicted, recorded) is same


def test_scores_are_grouped_by_conversation() -> None:
    """The reply has no match score; of its two tokens the mean log-probability is -1.5; the call has no prediction."""
    points = decision_points(corrected())
    right = {"t#2": call("cancel_order", '{"id":"O1"}'), "t#3": Message("assistant", "Done.")}
    assert match_scores(points, right) == {"t": (1.0, None)}
    assert match_scores(points, {}) == {"t": (None, None)}
    assert logprob_scores(points, {"t#3": (-1.0, -2.0)}) == {"t": (None, -1.5)}
    assert match_scores([], {}) == {}


def test_a_broken_log_probability_is_an_error() -> None:
    with pytest.raises(ValueError, match="'t#2' has a log-probability that is not finite"):
        logprob_scores(decision_points(corrected()), {"t#2": (float("nan"),)})

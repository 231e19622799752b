"""Times, marks and turns that every reader shares."""

from datetime import UTC, datetime
from typing import Any

import pytest

from components.ingestion._conversation import altered_at, build_turns, mark, read_time
from components.records import Message

MOMENT = datetime(2026, 3, 1, 10, tzinfo=UTC)
SECONDS = int(MOMENT.timestamp())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-03-01T10:00:00Z", MOMENT),
        ("2026-03-01T11:00:00+01:00", MOMENT),
        ("2026-03-01T10:00:00", MOMENT),
        (SECONDS, MOMENT),
        (SECONDS * 1_000, MOMENT),
        (SECONDS * 10**6, MOMENT),
        (SECONDS * 10**9, MOMENT),
        (float(SECONDS), MOMENT),
        ("yesterday", None),
        ("", None),
        (None, None),
        (True, None),
        (float("inf"), None),
        (-(10**30), None),
        ([1], None),
    ],
)
def test_times(value: Any, expected: datetime | None) -> None:
    assert read_time(value) == expected


def test_turns_without_any_action() -> None:
    turns, tail = build_turns([Message("user", "hi")])
    assert (turns, tail) == ((), (Message("user", "hi"),))
    assert build_turns([]) == ((), ())


def test_two_actions_in_a_row() -> None:
    turns, tail = build_turns([Message("assistant", "a"), Message("assistant", "b")], first_index=3)
    assert [(t.index, t.observation, t.action.text) for t in turns] == [(3, (), "a"), (4, (), "b")]
    assert tail == ()


def test_marks_are_set_once() -> None:
    once = mark(Message("user", "hi"), "skew")
    assert mark(once, "skew") is once
    assert altered_at(("altered /messages/1/content",), "/messages/1") == ("altered",)
    assert altered_at(("altered /messages/10",), "/messages/1") == ()

"""Feedback lines -> feedback of a trajectory, its outcome, and the turns of the person who took over.

An `edit` with messages is a corrected continuation: what a person did from turn k on. Its actions are appended as turns
with executor `human` after the policy's; the first of them sees what the agent saw at turn k, so a corrected
conversation is `turns[:k]` followed by the human turns. Several such edits: the latest gives the turns. Without k, or
with k past the end, the person went on where the agent stopped.

The outcome is True exactly when the score of the latest `outcome` feedback is at least 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

import orjson

from components.errors import RecordError
from components.ingestion._chain import EARLIEST
from components.ingestion._conversation import build_turns, read_time
from components.llm import read_message, write_message
from components.records import Feedback, Message, Trajectory
from components.serial import load

FIELDS = frozenset(field.name for field in fields(Feedback))


@dataclass(frozen=True, slots=True)
class FeedbackLine:
    record_id: str
    feedback: Feedback
    messages: tuple[Message, ...] = ()
    """A person's corrected continuation."""

    @property
    def order(self) -> tuple[datetime, str]:
        return self.feedback.occurred_at or EARLIEST, self.record_id


def read_feedback(record_id: str, raw: Mapping[str, Any], at: Any) -> FeedbackLine:
    """A feedback line of the recording proxy.

    Raises:
        RecordError: a field is missing, unknown or of another type.
    """
    unknown = sorted(set(raw) - FIELDS - {"messages"})
    if unknown:
        raise RecordError(
            f"feedback has unknown fields {unknown}, expected some of {sorted(FIELDS)}"
        )
    values = {key: value for key, value in raw.items() if key != "messages"}
    feedback = load(Feedback, {**values, "occurred_at": read_time(values.get("occurred_at", at))})
    messages = raw.get("messages") or []
    if not isinstance(messages, list):
        raise RecordError(f"feedback messages are {type(messages).__name__}, expected a list")
    return FeedbackLine(record_id, feedback, tuple(read_message(message) for message in messages))


def apply(trajectory: Trajectory, lines: Sequence[FeedbackLine]) -> Trajectory:
    """The trajectory with its feedback, in order of time."""
    ordered = sorted(lines, key=lambda line: line.order)
    judged = replace(trajectory, feedback=tuple(_told(trajectory, line) for line in ordered))
    outcomes = [f for f in judged.feedback if f.kind == "outcome" and f.score is not None]
    if outcomes:
        last = outcomes[-1]
        judged = replace(judged, outcome=(last.score or 0) >= 1, outcome_source=last.source)
    edits = [line for line in ordered if line.feedback.kind == "edit" and line.messages]
    return _take_over(judged, edits[-1]) if edits else judged


def _told(trajectory: Trajectory, line: FeedbackLine) -> Feedback:
    feedback = line.feedback
    if feedback.kind != "edit" or not line.messages:
        return feedback
    before, turn = feedback.before, feedback.turn
    if before is None and turn is not None and 0 <= turn < len(trajectory.turns):
        action = trajectory.turns[turn].action
        before = action.text or orjson.dumps(write_message(action)).decode()
    after = orjson.dumps([write_message(message) for message in line.messages]).decode()
    return replace(feedback, before=before, after=feedback.after or after)


def _take_over(trajectory: Trajectory, line: FeedbackLine) -> Trajectory:
    turn, num_turns = line.feedback.turn, len(trajectory.turns)
    if turn is not None and 0 <= turn < num_turns:
        observation = trajectory.turns[turn].observation
    else:
        observation = trajectory.tail
    human = build_turns(line.messages, executor="human", first_index=num_turns)
    if not human.turns:
        return trajectory
    first = human.turns[0]
    first = replace(first, observation=(*observation, *first.observation))
    return replace(
        trajectory,
        turns=(*trajectory.turns, first, *human.turns[1:]),
        tail=human.tail,
        stop_reason="takeover",
    )

"""Evaluation without an environment: what would the policy do where it is known what should be done?

A decision point is a turn of a held-out conversation that a person took, or that the policy took in a successful one,
with the history before it. Two scores, each per decision point:

    match     1 when the predicted action calls the same tools in the same order with equal arguments (as canonical
              JSON), else 0
    logprob   mean log-probability per token that the policy gives to the recorded action

A recorded action without tool calls (a reply in prose) has no match score, since two right replies rarely read alike; a
recorded call with broken arguments neither. Both are None: excluded and counted, never guessed. So is a missing
prediction. Scores are grouped by conversation, so that paired statistics treat conversations as the independent units.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from components.records import Message, Trajectory
from components.serial import canonical
from components.tokens import ORPHAN_MARK

PEOPLE = ("human", "teacher")


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    id: str
    """`<trajectory>#<place of the turn>`."""
    trajectory_id: str
    context: tuple[Message, ...]
    """All that was said before."""
    recorded: Message
    """The action to be predicted."""


def decision_points(trajectory: Trajectory) -> list[DecisionPoint]:
    """Where it is known what should be done; none in a failure that nobody corrected."""
    turns = trajectory.turns
    person = [place for place, turn in enumerate(turns) if turn.executor in PEOPLE]
    if person:
        places = [*range(_takeover(trajectory, person[0])), *range(person[0], person[-1] + 1)]
        wanted = set(person)
    elif trajectory.outcome is True:
        places = list(range(len(turns)))
        wanted = {place for place in places if turns[place].executor == "policy"}
    else:
        return []
    points: list[DecisionPoint] = []
    said: list[Message] = []
    for place in places:
        said.extend(_paired(message, said) for message in turns[place].observation)
        if place in wanted:
            name = f"{trajectory.id}#{place}"
            points.append(DecisionPoint(name, trajectory.id, tuple(said), turns[place].action))
        said.append(turns[place].action)
    return points


def _paired(message: Message, said: Sequence[Message]) -> Message:
    """The message without the mark of an orphan, if its call is in the history after all.

    A person's turns may be read apart from the history that they continue, so their first result may be marked.
    """
    calls = {call.id for earlier in said for call in earlier.tool_calls}
    if ORPHAN_MARK not in message.marks or message.tool_call_id not in calls:
        return message
    return replace(message, marks=tuple(mark for mark in message.marks if mark != ORPHAN_MARK))


def _takeover(trajectory: Trajectory, first: int) -> int:
    """Place of the turn that a person began to redo; their own place when they simply went on."""
    turns = trajectory.turns
    told = [
        said.turn for said in trajectory.feedback if said.kind == "edit" and said.turn is not None
    ]
    for place in (*told, *range(first - 1, -1, -1)):
        if 0 <= place < first and _texts(turns[place].observation) == _texts(
            turns[first].observation
        ):
            return place
    return first


def _texts(messages: Sequence[Message]) -> list[tuple[str, str, str | None]]:
    return [(message.role, message.text, message.tool_call_id) for message in messages]


def matches(predicted: Message, recorded: Message) -> bool | None:
    """Whether an action does what the recorded one did; None when the recorded one cannot be compared."""
    wanted = _calls(recorded)
    if not wanted:
        return None
    return _calls(predicted) == wanted


def _calls(action: Message) -> list[tuple[str, bytes]] | None:
    """Tools and canonical arguments in order; None when one cannot be read."""
    read: list[tuple[str, bytes]] = []
    for call in action.tool_calls:
        arguments = call.parsed
        if arguments is None:
            return None
        read.append((call.name, canonical(arguments)))
    return read


def match_scores(
    points: Sequence[DecisionPoint], predictions: Mapping[str, Message]
) -> dict[str, tuple[float | None, ...]]:
    """Conversation -> match score per decision point. `predictions`: decision point -> action."""

    def score(point: DecisionPoint) -> float | None:
        if point.id not in predictions:
            return None
        same = matches(predictions[point.id], point.recorded)
        return None if same is None else float(same)

    return _grouped(points, {point.id: score(point) for point in points})


def logprob_scores(
    points: Sequence[DecisionPoint], logprobs: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float | None, ...]]:
    """Conversation -> mean log-probability per decision point. `logprobs`: decision point -> one per token."""

    def score(point: DecisionPoint) -> float | None:
        tokens = logprobs.get(point.id, ())
        if any(not math.isfinite(value) for value in tokens):
            raise ValueError(
                f"decision point {point.id!r} has a log-probability that is not finite"
            )
        return math.fsum(tokens) / len(tokens) if tokens else None

    return _grouped(points, {point.id: score(point) for point in points})


def _grouped(
    points: Sequence[DecisionPoint], scores: Mapping[str, float | None]
) -> dict[str, tuple[float | None, ...]]:
    found: dict[str, list[float | None]] = {}
    for point in points:
        found.setdefault(point.trajectory_id, []).append(scores[point.id])
    return {trajectory_id: tuple(row) for trajectory_id, row in found.items()}

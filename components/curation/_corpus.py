"""Records -> the plain data that a strategy reads.

    {"trajectories": [{"id", "outcome", "stop_reason", "marks", "tools": [name],
                       "turns": [{"executor", "observation": [message], "action": message, "error"}],
                       "feedback": [{"source", "kind", "score", "turn", "name"}]}],
     "cases": [{"id", "trajectory_id", "turn", "kind", "tool", "signature", "fault", "mode_id", "review"}]}

    message   {"role", "text", "chars", "marks", "calls": [{"name", "arguments", "problem"}]}

A turn is named by its place in `turns`, counted from 0, here and in everything a strategy answers. Text longer than
`max_chars` is shown shortened with its full length in `chars`; the host rebuilds messages from the records, so nothing
is lost by that. Conversations that people touched or that failed come first when `max_mb` does not hold all.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from components.errors import RecordError
from components.records import Dropped, FailureCase, Message, Trajectory
from components.serial import canonical


class Corpus(NamedTuple):
    data: dict[str, Any]
    left_out: tuple[Dropped, ...]
    """Trajectories that did not fit."""


def build_corpus(
    trajectories: Sequence[Trajectory],
    cases: Sequence[FailureCase],
    max_chars: int = 2000,
    max_mb: float = 32.0,
) -> Corpus:
    """The corpus of these records.

    Raises:
        RecordError: a trajectory of the dev or test split, or two with one id.
    """
    _check(trajectories)
    failed = {case.trajectory_id for case in cases}
    places = {item.id: _place_of(item) for item in trajectories}
    budget = max_mb * 1024 * 1024
    shown: dict[str, dict[str, Any]] = {}
    left_out: list[Dropped] = []
    for item in sorted(trajectories, key=lambda one: not (one.id in failed or _has_person(one))):
        plain = _trajectory(item, places[item.id], max_chars)
        budget -= len(canonical(plain))
        if budget < 0:
            left_out.append(Dropped(item.id, f"the corpus is limited to {max_mb:g} MB"))
        else:
            shown[item.id] = plain
    data = {
        "trajectories": [shown[item.id] for item in trajectories if item.id in shown],
        "cases": [
            _case(case, places[case.trajectory_id]) for case in cases if case.trajectory_id in shown
        ],
    }
    return Corpus(data, tuple(left_out))


def _check(trajectories: Sequence[Trajectory]) -> None:
    seen: set[str] = set()
    for item in trajectories:
        if item.split not in (None, "train"):
            raise RecordError(
                f"trajectory {item.id!r} is of split {item.split!r}; a strategy may see 'train' only"
            )
        if item.id in seen:
            raise RecordError(f"trajectory {item.id!r} is given twice to curation")
        seen.add(item.id)


def _has_person(item: Trajectory) -> bool:
    return any(turn.executor == "human" for turn in item.turns)


def _place_of(item: Trajectory) -> dict[int, int]:
    """Turn index -> place; the first of several turns with one index."""
    return {turn.index: place for place, turn in reversed(list(enumerate(item.turns)))}


def _trajectory(item: Trajectory, place_of: dict[int, int], max_chars: int) -> dict[str, Any]:
    return {
        "id": item.id,
        "outcome": item.outcome,
        "stop_reason": item.stop_reason,
        "marks": list(item.marks),
        "tools": sorted(tools_of(item)),
        "turns": [
            {
                "executor": turn.executor,
                "observation": [_message(message, max_chars) for message in turn.observation],
                "action": _message(turn.action, max_chars),
                "error": turn.error,
            }
            for turn in item.turns
        ],
        "feedback": [
            {
                "source": said.source,
                "kind": said.kind,
                "score": said.score,
                "turn": None if said.turn is None else place_of.get(said.turn),
                "name": said.name,
            }
            for said in item.feedback
        ],
    }


def tools_of(item: Trajectory) -> set[str]:
    """Tools offered or called in a trajectory."""
    offered = {tool.get("function", tool).get("name") for tool in item.tools}
    called = {call.name for turn in item.turns for call in turn.action.tool_calls}
    return {name for name in offered | called if isinstance(name, str) and name}


def _message(message: Message, max_chars: int) -> dict[str, Any]:
    text = message.text
    return {
        "role": message.role,
        "text": text[:max_chars],
        "chars": len(text),
        "marks": list(message.marks),
        "calls": [
            {"name": call.name, "arguments": call.arguments[:max_chars], "problem": call.problem}
            for call in message.tool_calls
        ],
    }


def _case(case: FailureCase, place_of: dict[int, int]) -> dict[str, Any]:
    return {
        "id": case.id,
        "trajectory_id": case.trajectory_id,
        "turn": None if case.turn is None else place_of.get(case.turn),
        "kind": case.kind,
        "tool": case.tool,
        "signature": case.signature,
        "fault": case.fault,
        "mode_id": case.mode_id,
        "review": case.review.verdict if case.review else None,
    }

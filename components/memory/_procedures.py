"""What was done in a solved conversation, without anything that belongs to this conversation alone.

    customer  "Please cancel W482."      get_order {"order": "W482"} -> {"status": "packed"}
              cancel_order {"order": "W482"} -> ...          "Order W482 is cancelled."

    cue    Please cancel <order>.
    steps  get_order(order), then cancel_order(order), then reply naming order

A procedure holds names only: of tools, of arguments, and of the fields that the reply repeats. The one kind of value it
shows is a choice that the tool's definition lists (`escalate(order, reason=shipped)`).
"""

import json
import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, cast

from components.memory._cues import cue_of, leaks
from components.records import Message, Trajectory, Turn

PEOPLE = ("human", "teacher")
THEN = ", then "
AGAIN = " for each"
"""Follows a call that is made several times in a row."""
NUMBER = re.compile(r"-?\d{1,12}(\.\d{1,6})?")
MAX_STEPS = 10
"""Calls after which a conversation is too long to be a rule."""


class Result(NamedTuple):
    words: frozenset[tuple[str, str]]
    """(field, word)"""
    figures: dict[str, float]
    """Of fields that stand in it once."""


@dataclass(frozen=True, slots=True)
class Solved:
    """One solved conversation, reduced."""

    trajectory_id: str
    corrected: bool
    """A person solved it, not the agent."""
    cue: str
    steps: tuple[str, ...]
    results: tuple[Result, ...]
    """What came back from each step up to the first that was repeated: what a later step may depend on."""
    particulars: frozenset[str]
    """Values that must appear in no lesson."""

    @property
    def procedure(self) -> str:
        return THEN.join(self.steps)


def solved(trajectory: Trajectory) -> Solved | None:
    """The trajectory as a solved conversation; None when nobody solved it or nothing was done.

    A person's turns count as the solution; without any, the agent's own when the outcome is known to be a success.
    """
    people = [turn for turn in trajectory.turns if turn.executor in PEOPLE]
    turns = people or [t for t in trajectory.turns if t.executor == "policy"]
    asked = next((message.text for message in trajectory.messages if message.role == "user"), "")
    if not turns or not asked.strip() or not (people or trajectory.outcome is True):
        return None
    listed = _listed(trajectory)
    given, steps = _calls(turns, listed)
    if not 0 < len(steps) <= MAX_STEPS or any(
        call.parsed is None for t in turns for call in t.action.tool_calls
    ):
        return None
    results = list(_results(turns))
    fields = {value: name for name, value in _leaves(results) if _is_particular(value)} | given
    unrepeated = list(takewhile(lambda step: not step.endswith(AGAIN), steps))
    reply = turns[-1].action
    named = _named(reply.text, fields | {value: name for name, value in _leaves(results[-1:])})
    ending = () if reply.tool_calls else ("reply naming " + ", ".join(named) if named else "reply",)
    return Solved(
        trajectory_id=trajectory.id,
        corrected=bool(people),
        cue=cue_of(asked, fields),
        steps=(*steps, *ending),
        results=tuple(
            _read(result, fields) for result, _ in zip(results, unrepeated, strict=False)
        ),
        particulars=frozenset(fields),
    )


def _calls(turns: Sequence[Turn], listed: dict[str, set[str]]) -> tuple[dict[str, str], list[str]]:
    """Argument values with their names, and each call as `tool(names)`."""
    given: dict[str, str] = {}
    steps: list[str] = []
    for call in (call for turn in turns for call in turn.action.tool_calls):
        shown: list[str] = []
        for name, value in (call.parsed or {}).items():
            choice = isinstance(value, str) and value in listed.get(f"{call.name}.{name}", ())
            shown.append(f"{name}={value}" if choice else name)
            if not choice:
                given.update(
                    {leaf: _label(n) for n, leaf in _leaves([value], name) if len(leaf) > 1}
                )
        step = f"{call.name}({', '.join(shown)})"
        if not steps or steps[-1].removesuffix(AGAIN) != step:
            steps.append(step)
        else:
            steps[-1] = step + AGAIN
    return given, steps


def _listed(trajectory: Trajectory) -> dict[str, set[str]]:
    """`tool.argument` -> the values its definition lists."""
    found: dict[str, set[str]] = {}
    for tool in trajectory.tools:
        function = tool.get("function", tool)
        properties = (function.get("parameters") or {}).get("properties") or {}
        for name, schema in properties.items():
            values = schema.get("enum") if isinstance(schema, dict) else None
            if values:
                found[f"{function.get('name')}.{name}"] = {str(value) for value in values}
    return found


def _results(turns: Sequence[Turn]) -> Iterator[Any]:
    """Tool results as data, in order; one that is not JSON is None, which has no fields."""
    for message in _answers(turns):
        try:
            yield json.loads(message.text)
        except ValueError:
            yield None


def _answers(turns: Sequence[Turn]) -> Iterator[Message]:
    for turn in turns[1:]:
        yield from (message for message in turn.observation if message.role == "tool")


def _leaves(values: Sequence[Any], name: str = "value") -> Iterator[tuple[str, str]]:
    """(field, text) of every scalar; a key that looks like data is data too."""
    for value in values:
        if isinstance(value, dict):
            for key, inner in cast("dict[str, Any]", value).items():
                if _label(key) == "value":
                    yield "value", key
                yield from _leaves([inner], _label(key))
        elif isinstance(value, list):
            yield from _leaves(cast("list[Any]", value), name)
        elif value is not None and not isinstance(value, bool):
            yield name, str(value)


def _read(result: Any, particulars: Container[str]) -> Result:
    leaves = list(_leaves([result]))
    counts = Counter(name for name, _ in leaves)
    words = {
        (name, value)
        for name, value in leaves
        if re.fullmatch(r"[a-z]{3,16}", value) and value not in particulars
    }
    figures = {
        name: float(value)
        for name, value in leaves
        if counts[name] == 1 and NUMBER.fullmatch(value)
    }
    return Result(frozenset(words), figures)


def _label(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]{1,32}", name) else "value"


def _is_particular(value: str) -> bool:
    return len(value) > 1 and re.search(r"[\dA-Z@ ]", value) is not None


def _named(reply: str, fields: dict[str, str]) -> tuple[str, ...]:
    """Fields whose value the reply repeats, in alphabetical order."""
    return tuple(
        sorted({name for value, name in fields.items() if leaks(reply, frozenset({value}))})
    )

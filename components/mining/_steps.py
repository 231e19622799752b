"""A trajectory as the miner reads it: one step per tool call or reply, each with the answer it got.

A text that is an attempt at a call (cut off, malformed, or a known tool's name followed by a bracket) is an unreadable
step, any other text is a reply. Answers are paired by call id within the messages that follow; by position only where the
log carries no ids or repeats them. The answer to the last action before an operator takes over is not in the log, so it
is unknown, not missing.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from components.embedding import mask
from components.records import Message, ToolCall, Trajectory, Turn

StepKind = Literal["call", "reply", "unreadable"]
ErrorKind = Literal["server", "caller"]
QUOTE = 160
"""Characters kept of a quote."""
FREE_TEXT = 4
"""Two argument values with more words than this are remarks, and remarks are not compared."""

SERVER = re.compile(
    r"\b50[0-4]\b|\b429\b|internal server error|bad gateway|(service|temporarily) unavailable|overloaded"
    r"|tim(ed|e) ?out|connection (refused|reset|aborted|error)|rate.?limit|traceback \(most recent",
    re.IGNORECASE,
)
FAILED = re.compile(
    r"^\W*(http )?(error|exception|failed|failure|traceback|50[0-4])\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Step:
    turn: int
    kind: StepKind
    tool: str | None
    arguments: dict[str, Any]
    text: str
    """The reply, the call as written, or the unreadable text."""
    reason: str = ""
    """Why it is unreadable."""
    answer: Message | None = None
    missing: bool = False
    """The log goes on, and nothing answers this call."""
    cut: bool = False
    """The model stopped at its token limit."""

    @property
    def error(self) -> ErrorKind | None:
        """Whether the tool answered with an error, and whose it looks like."""
        return None if self.answer is None else error_kind(self.answer.text)


def shorten(text: str) -> str:
    """One line of at most `QUOTE` characters."""
    line = " ".join(text.split())
    return line if len(line) <= QUOTE else line[: QUOTE - 1] + "…"


def short_reason(problem: str) -> str:
    """The kind of a parse problem without positions: `extra data`, `empty arguments`."""
    words = problem.removeprefix("unparsable:").strip().removeprefix("invalid arguments:").strip()
    return mask(re.split(r"[:;(]", words)[0].strip().lower())[:40].replace("|", "/")


def error_kind(text: str) -> ErrorKind | None:
    """`server` for failures of the tool itself, `caller` for a refused request, None for no error."""
    message = error_text(text)
    if message is None:
        return None
    return "server" if SERVER.search(message) else "caller"


def error_text(text: str) -> str | None:
    """What a tool's answer says went wrong, or None when it reports no error."""
    try:
        value = json.loads(text)
    except ValueError:
        return text if FAILED.search(text) else None
    if not isinstance(value, dict):
        return value if isinstance(value, str) and FAILED.search(value) else None
    fields = cast("dict[str, Any]", value)
    said = fields.get("error") or fields.get("errors")
    if said:
        return said if isinstance(said, str) else json.dumps(said)
    refused = fields.get("isError") is True or fields.get("status") in ("error", "failed")
    return text if refused or fields.get("ok") is False else None


def steps_of(turns: Sequence[Turn], trajectory: Trajectory) -> list[Step]:
    """The steps of some turns of a trajectory, in order."""
    names = {call.name for turn in trajectory.turns for call in turn.action.tool_calls}
    names |= {str(tool.get("function", tool).get("name", "")) for tool in trajectory.tools} - {""}
    places = {turn.index: place for place, turn in enumerate(trajectory.turns)}
    found: list[Step] = []
    for turn in turns:
        if turn.action.tool_calls:
            found.extend(_calls(turn, trajectory, places[turn.index]))
        else:
            found.append(_text(turn, names))
    return found


def is_marked_unparsable(turn: Turn) -> bool:
    """Whether the loop that ran the agent could not read this action, and so executed nothing of it."""
    return any(mark.startswith("unparsable") for mark in turn.action.marks)


def _text(turn: Turn, names: set[str]) -> Step:
    text = turn.action.text
    marked = next((mark for mark in turn.action.marks if mark.startswith("unparsable")), None)
    cut = turn.finish_reason == "length"
    attempted = next((name for name in sorted(names) if _attempts(text, name)), None)
    if marked is not None:
        reason = "cut off" if cut else short_reason(marked)
    elif cut:
        reason = "cut off"
    elif not text.strip():
        reason = "empty"
    elif attempted is not None:
        reason = "call written as text"
    else:
        return Step(turn.index, "reply", None, {}, text)
    return Step(turn.index, "unreadable", attempted, {}, text, reason=reason, cut=cut)


def _attempts(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}\"?\s*[({{:,]", text) is not None


def _calls(turn: Turn, trajectory: Trajectory, place: int) -> list[Step]:
    calls = turn.action.tool_calls
    last = place + 1 == len(trajectory.turns)
    follower = None if last else trajectory.turns[place + 1]
    after = trajectory.tail if follower is None else follower.observation
    answers = pair(calls, after)
    some = any(answer is not None for answer in answers)
    goes_on = some or (follower is not None and follower.executor == turn.executor)
    cut = turn.finish_reason == "length"
    refused = is_marked_unparsable(turn)
    found: list[Step] = []
    for call, answer in zip(calls, answers, strict=True):
        text = f"{call.name} {call.arguments}"
        missing = answer is None and goes_on
        arguments = call.parsed
        if arguments is None or refused:
            reason = short_reason(call.problem or ("cut off" if cut else "not read"))
            kind, arguments = "unreadable", {}
        else:
            reason, kind = "", "call"
        found.append(
            Step(turn.index, kind, call.name, arguments, text, reason, answer, missing, cut)
        )
    return found


def pair(calls: Sequence[ToolCall], after: Sequence[Message]) -> list[Message | None]:
    """The tool message that answers each call, None where there is none."""
    answers = [message for message in after if message.role == "tool"]
    ids = [call.id for call in calls]
    said = [answer.tool_call_id for answer in answers]
    if all(ids) and len(set(ids)) == len(ids) and all(said) and len(set(said)) == len(said):
        by_id = dict(zip(said, answers, strict=True))
        return [by_id.get(call.id) for call in calls]
    padded: list[Message | None] = [*answers[: len(calls)]]
    return padded + [None] * (len(calls) - len(padded))


def same_step(left: Step, right: Step) -> bool:
    """Whether two steps do the same: one tool with equal arguments, or two replies."""
    if left.kind != right.kind or left.kind == "unreadable" or left.tool != right.tool:
        return False
    return not differing(left.arguments, right.arguments)


def differing(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names of arguments that differ in more than spelling; null and absent are the same."""
    names = sorted(left.keys() | right.keys())
    return [name for name in names if not _equal(left.get(name), right.get(name))]


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return not differing(cast("dict[str, Any]", left), cast("dict[str, Any]", right))
    if isinstance(left, list) and isinstance(right, list):
        pairs = zip(cast("list[Any]", left), cast("list[Any]", right), strict=False)
        return len(left) == len(right) and all(_equal(a, b) for a, b in pairs)  # pyright: ignore
    if left is None or right is None:
        return left is right
    a, b = _plain(left), _plain(right)
    return a == b or min(len(a.split()), len(b.split())) > FREE_TEXT


def _plain(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return " ".join(str(value).casefold().split())

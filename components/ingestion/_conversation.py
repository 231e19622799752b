"""Messages in order -> turns: the part that all readers share.

A turn is one assistant message with everything that came since the one before. Tool results find their call by id; ids
that are used again inside one conversation pair with the latest open call of that id, and results without an id with the
first open call. What does not fit is kept and marked:

    orphan tool result    on a tool message whose call is not in the conversation
    no result <id>        on an assistant message with a call that nobody answered although the conversation went on
    altered               on a message whose text had to be changed to be storable
    not observed          on an assistant message that stood in a request but was never seen as an answer
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from components.protocols import RawRecord
from components.records import Executor, Message, SourceRef, ToolCall, Turn, Usage
from components.serial import digest

LARGEST_SECONDS = 1e11
LARGEST_MILLISECONDS = 1e14
LARGEST_MICROSECONDS = 1e17


@dataclass(frozen=True, slots=True)
class Answer:
    """An assistant message as the model gave it, with what came along."""

    message: Message
    finish_reason: str | None = None
    usage: Usage | None = None
    latency_s: float | None = None
    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    policy_version: str | None = None


class Turns(NamedTuple):
    turns: tuple[Turn, ...]
    tail: tuple[Message, ...]
    """Messages after the last action."""


def build_turns(
    messages: Sequence[Message],
    answers: Mapping[int, Answer] | None = None,
    executor: Executor = "policy",
    first_index: int = 0,
) -> Turns:
    """Turns of a conversation. `answers`: what is known about the assistant messages at these positions;
    the others get `executor`."""
    known = answers or {}
    whole = [known[place].message if place in known else m for place, m in enumerate(messages)]
    turns: list[Turn] = []
    observation: list[Message] = []
    for place, message in enumerate(pair_results(whole)):
        if message.role != "assistant":
            observation.append(message)
            continue
        index = first_index + len(turns)
        if place in known:
            turns.append(_answered(index, tuple(observation), message, known[place]))
        else:
            turns.append(Turn(index, tuple(observation), message, executor=executor))
        observation = []
    return Turns(tuple(turns), tuple(observation))


def _answered(
    index: int, observation: tuple[Message, ...], action: Message, answer: Answer
) -> Turn:
    return Turn(
        index,
        observation,
        action,
        usage=answer.usage,
        finish_reason=answer.finish_reason,
        latency_s=answer.latency_s,
        prompt_ids=answer.prompt_ids,
        completion_ids=answer.completion_ids,
        logprobs=answer.logprobs,
        policy_version=answer.policy_version,
    )


def pair_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with tool results that fit no call, and calls that got no result, marked."""
    marked = list(messages)
    open_calls: list[tuple[int, ToolCall]] = []
    for place, message in enumerate(messages):
        if message.tool_calls:
            open_calls.extend((place, call) for call in message.tool_calls)
        elif message.role == "tool":
            match = _call_of(message, open_calls)
            if match is None:
                marked[place] = mark(message, "orphan tool result")
            else:
                del open_calls[match]
    for place, call in open_calls:
        if place + 1 < len(messages):
            marked[place] = mark(marked[place], f"no result {call.id or call.name}")
    return marked


def _call_of(result: Message, open_calls: Sequence[tuple[int, ToolCall]]) -> int | None:
    if result.tool_call_id:
        matches = [i for i, (_, call) in enumerate(open_calls) if call.id == result.tool_call_id]
        if not matches:
            return None
        latest = open_calls[matches[-1]][0]
        return next(i for i in matches if open_calls[i][0] == latest)
    named = [i for i, (_, call) in enumerate(open_calls) if result.name in (None, call.name)]
    return named[0] if named else None


def mark(message: Message, *marks: str) -> Message:
    """The message with further marks, each once."""
    fresh = tuple(name for name in marks if name not in message.marks)
    return replace(message, marks=(*message.marks, *fresh)) if fresh else message


def altered_at(marks: Sequence[str], pointer: str) -> tuple[str, ...]:
    """`("altered",)` when a record's marks say that something at or below the JSON pointer was changed."""
    wanted = f"altered {pointer}"
    hit = any(name == wanted or name.startswith(f"{wanted}/") for name in marks)
    return ("altered",) if hit else ()


def trajectory_id(records: Sequence[RawRecord], agent: str) -> str:
    """The same for every arrival of the same conversation, however much of it is known."""
    first = records[0]
    return digest(f"{first.format}\n{agent}\n{first.conversation_id}")[:32]


def distinct(records: Sequence[RawRecord]) -> list[RawRecord]:
    """Each record once, ordered by id: the order of arrival must not matter."""
    first: dict[str, RawRecord] = {}
    for record in sorted(records, key=lambda record: (record.id, record.start, record.line or 0)):
        first.setdefault(record.id, record)
    return list(first.values())


def source_of(records: Sequence[RawRecord]) -> SourceRef:
    """Where a trajectory stood: the bytes of its only record, or of none in particular."""
    if len(records) > 1:
        return SourceRef(records[0].format, uri="")
    only = records[0]
    return SourceRef(only.format, uri="", start=only.start, end=only.end, line=only.line)


def read_nanoseconds(stamp: int | None) -> datetime | None:
    """The aware UTC time of a Unix stamp in nanoseconds."""
    try:
        return None if stamp is None else datetime.fromtimestamp(stamp / 1e9, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def read_time(value: Any) -> datetime | None:
    """An aware UTC time from ISO text or a Unix stamp in s, ms, us or ns; None when it is neither.

    Text without a zone is taken as UTC.
    """
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if value > LARGEST_MICROSECONDS:
            value = value / 1e9
        elif value > LARGEST_MILLISECONDS:
            value = value / 1e6
        elif value > LARGEST_SECONDS:
            value = value / 1e3
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None

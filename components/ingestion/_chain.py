"""Requests and answers of one conversation -> the conversation.

An agent sends its whole history with every request, so a later request contains the earlier answers. The conversation is
the longest request with its answer (ties: the latest, then the largest record id), and every assistant message inside
it is looked up among the recorded answers:

    same history, same answer      it is that answer: usage, finish reason and token ids belong to it
    same history, other text       the answer was changed when sent back (trimmed, reasoning removed): what the model
                                   really said is kept, marked `altered on resend`
    no record of it                part of the given history: executor `replay`, marked `not observed`

A request that holds only the last answer and what came after it (a window) is first completed with the history of the
exchange that gave this answer, the latest one that is not continued yet in order of time.

Histories are compared by role, text and tool calls without their ids; system and developer messages are left out, so
instructions that change from call to call do not tear a conversation apart. Answers that are not in the longest
conversation are forks (retries, sub-agents): counted in a mark, kept in the raw records.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from components.ingestion._conversation import Answer, build_turns, mark
from components.records import Message, Trajectory, Turn

INSTRUCTIONS = ("system", "developer")
EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to a model and what came back."""

    record_id: str
    messages: tuple[Message, ...]
    answer: Answer | None = None
    error: str | None = None
    """Why there is no answer."""
    at: datetime | None = None
    model: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, Any] | None = None
    is_whole: bool = False
    """A stored conversation: its assistant messages are the policy's own."""

    @property
    def size(self) -> int:
        return len(self.messages) + (self.answer is not None)

    @property
    def rank(self) -> tuple[int, datetime, str]:
        return self.size, self.at or EARLIEST, self.record_id


def join(exchanges: Sequence[Exchange], empty: Trajectory) -> Trajectory:
    """The trajectory of one conversation: `empty` with turns and all that the exchanges tell."""
    ordered = sorted(_complete(exchanges), key=lambda exchange: exchange.rank)
    last = ordered[-1]
    messages, answers, used = _history(last, () if last.is_whole else ordered)
    turns, tail = build_turns(messages, answers, "policy" if last.is_whole else "replay")
    turns = tuple(_unobserved(turn) for turn in turns)
    answered = [exchange for exchange in ordered if exchange.record_id in used]
    times = [exchange.at for exchange in ordered if exchange.at is not None]
    return replace(
        empty,
        turns=turns,
        tail=tail,
        stop_reason=_stop_reason(last, turns),
        policy=last.model,
        tools=last.tools,
        started_at=min(times, default=None),
        marks=(*empty.marks, *_marks(ordered, used)),
        metadata=_metadata(answered),
        task_id=_named(answered, "task_id"),
        harness_version=_named(answered, "harness_version"),
        memory_revision=_named(answered, "memory_revision"),
    )


def _complete(exchanges: Sequence[Exchange]) -> list[Exchange]:
    waiting: dict[Hashable, list[Exchange]] = {}
    complete: list[Exchange] = []
    for exchange in sorted(exchanges, key=lambda e: (e.at or EARLIEST, e.record_id)):
        spoken = [m for m in exchange.messages if m.role not in INSTRUCTIONS]
        if not exchange.is_whole and spoken and spoken[0].role == "assistant":
            givers = waiting.get(_key(spoken[0]))
            if givers and (giver := givers.pop()).answer is not None:
                history = (*giver.messages, giver.answer.message, *spoken[1:])
                exchange = replace(exchange, messages=history)
        if exchange.answer is not None:
            waiting.setdefault(_key(exchange.answer.message), []).append(exchange)
        complete.append(exchange)
    return complete


def _history(
    last: Exchange, ordered: Sequence[Exchange]
) -> tuple[list[Message], dict[int, Answer], set[str]]:
    by_request: dict[int, Exchange] = {}
    by_answer: dict[int, Exchange] = {}
    for exchange in ordered:
        if exchange.answer is not None:
            history = _prefixes(exchange.messages)[-1][1]
            by_request[history] = exchange
            by_answer[hash((history, _key(exchange.answer.message)))] = exchange
    messages, answers, used = list(last.messages), {}, {last.record_id}
    before = hash(())
    for place, prefix in _prefixes(last.messages)[1:]:
        if messages[place].role == "assistant":
            exact = by_answer.get(prefix)
            found = exact or by_request.get(before)
            if found is not None and found.answer is not None:
                answers[place] = found.answer if exact else _altered(found.answer)
                used.add(found.record_id)
        before = prefix
    if last.answer is not None:
        answers[len(messages)] = last.answer
        messages.append(last.answer.message)
    return messages, answers, used


def _prefixes(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """(place, hash of the history up to and including it) of every message that counts, the empty history first."""
    prefix = hash(())
    found = [(-1, prefix)]
    for place, message in enumerate(messages):
        if message.role not in INSTRUCTIONS:
            prefix = hash((prefix, _key(message)))
            found.append((place, prefix))
    return found


def _key(message: Message) -> Hashable:
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return message.role, message.text, calls


def _altered(answer: Answer) -> Answer:
    return replace(answer, message=mark(answer.message, "altered on resend"))


def _unobserved(turn: Turn) -> Turn:
    if turn.executor != "replay":
        return turn
    return replace(turn, action=mark(turn.action, "not observed"))


def _stop_reason(last: Exchange, turns: Sequence[Turn]) -> str | None:
    if last.error is not None:
        return f"error: {last.error}"
    if turns and turns[-1].finish_reason == "length":
        return "length"
    return None


def _marks(ordered: Sequence[Exchange], used: set[str]) -> list[str]:
    errors = [e.error for e in ordered[:-1] if e.error is not None]
    forks = sum(e.record_id not in used and e.error is None for e in ordered)
    marks = ["infrastructure error"] if ordered[-1].error is not None else []
    if errors:
        marks.append(f"failed calls on the way: {len(errors)}, last {errors[-1]}")
    if forks:
        marks.append(f"exchanges beside the longest chain: {forks}")
    return marks


def _metadata(answered: Sequence[Exchange]) -> dict[str, Any] | None:
    merged: dict[str, Any] = {}
    for exchange in answered:
        merged |= exchange.metadata or {}
    return merged or None


def _named(answered: Sequence[Exchange], name: str) -> str | None:
    value = (_metadata(answered) or {}).get(name)
    return None if value is None else str(value)

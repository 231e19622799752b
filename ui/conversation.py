"""A trajectory as a page shows it: every message, tool call, tool result and judgement, in order.

The first wrong turn is open and marked; with a correction by a person, what the agent did stands on the left and what the
person did on the right, from the turn at which the person took over. All text of the log passes `format.escape`, so it is
never markup. Long messages are cut at `limit` characters; `num_hidden` says how much is missing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from components.records import Evidence, FailureCase, Feedback, Message, ToolCall, Trajectory, Turn
from ui import format as fmt

CUT_AT = 1_500
OPEN_AT_MOST = 6
"""Conversations of at most this many turns are shown open."""
_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "customer",
    "assistant": "agent",
    "tool": "tool result",
}
_EXECUTORS = {"policy": "agent", "teacher": "teacher", "human": "operator", "replay": "replay"}


class Talk(NamedTuple):
    html: str
    num_hidden: int
    """Characters cut from long messages."""


@dataclass(slots=True)
class _Page:
    """One rendering: its limit, what is marked, and what it had to leave out."""

    limit: int | None
    wrong_turn: int | None
    evidence: tuple[Evidence, ...]
    feedback: tuple[Feedback, ...]
    marked: frozenset[int] = field(default=frozenset())
    """Positions of messages whose tokens are learnt."""
    num_hidden: int = 0

    def text(self, raw: str, css: str = "ns-text") -> str:
        shown, hidden = fmt.cut(raw, self.limit)
        self.num_hidden += hidden
        rest = f'<span class="ns-cut">… {hidden:,} more characters</span>' if hidden else ""
        return f'<pre class="{css}">{fmt.escape(shown)}{rest}</pre>'


def talk(
    trajectory: Trajectory, case: FailureCase | None = None, limit: int | None = CUT_AT
) -> Talk:
    """The whole trajectory as HTML, with the case's first wrong turn marked."""
    page = _Page(
        limit,
        case.turn if case else None,
        case.evidence if case else (),
        trajectory.feedback,
    )
    before, agent, person = split(trajectory)
    several = len(trajectory.turns) > OPEN_AT_MOST
    parts = [_turn(page, turn, not several or turn.index == page.wrong_turn) for turn in before]
    if person:
        parts.append(_side_by_side(page, agent, person))
    if trajectory.tail:
        tail = "".join(_message(page, message) for message in trajectory.tail)
        parts.append(f'<section class="ns-turn ns-flat">{tail}</section>')
    parts.append(_end(page, trajectory))
    return Talk(f'<div class="ns-talk">{"".join(parts)}</div>', page.num_hidden)


def example(
    messages: Sequence[Message], targets: Iterable[int], limit: int | None = CUT_AT
) -> Talk:
    """The messages of a training example, those that are learnt marked."""
    page = _Page(limit, None, (), (), frozenset(targets))
    body = "".join(
        _message(page, message, learnt=index in page.marked)
        for index, message in enumerate(messages)
    )
    return Talk(f'<div class="ns-talk">{body}</div>', page.num_hidden)


def split(
    trajectory: Trajectory,
) -> tuple[tuple[Turn, ...], tuple[Turn, ...], tuple[Turn, ...]]:
    """Turns before a person took over, the agent's from there on, and the person's."""
    person = tuple(turn for turn in trajectory.turns if turn.executor == "human")
    agent = tuple(turn for turn in trajectory.turns if turn.executor != "human")
    if not person:
        return agent, (), ()
    edits = [item.turn for item in trajectory.feedback if item.kind == "edit"]
    start = next((turn for turn in edits if turn is not None), person[0].index)
    before = tuple(turn for turn in agent if turn.index < start)
    return before, agent[len(before) :], person


def _side_by_side(page: _Page, agent: Sequence[Turn], person: Sequence[Turn]) -> str:
    left = "".join(_turn(page, turn, True) for turn in agent)
    right = "".join(
        _turn(page, turn, True, repeat=position == 0 and bool(agent))
        for position, turn in enumerate(person)
    )
    left = left or '<p class="ns-note">The agent did nothing from here on.</p>'
    return (
        '<div class="ns-sides"><section aria-label="What the agent did">'
        f'<h4>What the agent did</h4>{left}</section><section aria-label="What the operator did">'
        f"<h4>What the operator did</h4>{right}</section></div>"
    )


def _turn(page: _Page, turn: Turn, is_open: bool, repeat: bool = False) -> str:
    """One decision. `repeat`: its observation stands in the other column already."""
    is_wrong = turn.index == page.wrong_turn
    flag = '<span class="ns-flag">✕ first wrong turn</span>' if is_wrong else ""
    who = _EXECUTORS[turn.executor]
    head = (
        f'<span class="ns-index">Turn {turn.index}</span><span class="ns-who">{who}</span>'
        f'<span class="ns-gist">{fmt.escape(_gist(turn.action))}</span>{flag}'
    )
    seen = "" if repeat else "".join(_message(page, message) for message in turn.observation)
    quotes = "".join(_quote(item) for item in page.evidence if item.turn == turn.index)
    judged = "".join(_judgement(page, item) for item in page.feedback if item.turn == turn.index)
    error = f'<p class="ns-fact">error: {fmt.escape(turn.error)}</p>' if turn.error else ""
    body = f"{seen}{_message(page, turn.action, who)}{error}{quotes}{judged}{_facts(turn)}"
    css = "ns-turn ns-wrong" if is_wrong else f"ns-turn ns-by-{who}"
    return (
        f'<details class="{css}"{" open" if is_open else ""}><summary>{head}</summary>'
        f"{body}</details>"
    )


def _gist(action: Message) -> str:
    calls = [f"{call.name} {call.arguments}" for call in action.tool_calls]
    return fmt.gist(" ; ".join(calls) or action.text, 70)


def _message(page: _Page, message: Message, who: str | None = None, learnt: bool = False) -> str:
    name = who if who and message.role == "assistant" else _ROLES[message.role]
    tags = [*message.marks, *([f"answers {message.tool_call_id}"] if message.tool_call_id else [])]
    notes = "".join(f'<span class="ns-mark">{fmt.escape(tag)}</span>' for tag in tags)
    if learnt:
        notes += '<span class="ns-learnt">learnt</span>'
    is_tool = message.role == "tool"
    text = fmt.pretty_json(message.text) if is_tool else message.text
    body = page.text(text, "ns-text ns-mono" if is_tool else "ns-text") if text else ""
    body += "".join(_call(page, call) for call in message.tool_calls)
    css = f"ns-msg ns-{message.role}" + (" ns-target" if learnt else "")
    empty = '<p class="ns-note">(nothing said)</p>'
    return (
        f'<div class="{css}"><div class="ns-role">{fmt.escape(name)}{notes}</div>'
        f"{body or empty}</div>"
    )


def _call(page: _Page, call: ToolCall) -> str:
    problem = f'<span class="ns-flag">✕ {fmt.escape(call.problem)}</span>' if call.problem else ""
    arguments = page.text(fmt.pretty_json(call.arguments), "ns-text ns-mono")
    return (
        f'<div class="ns-call"><div class="ns-role">calls <b>{fmt.escape(call.name)}</b>'
        f"{problem}</div>{arguments}</div>"
    )


def _quote(item: Evidence) -> str:
    return f'<p class="ns-quote"><b>Evidence</b> {fmt.escape(item.quote)}</p>'


def _judgement(page: _Page, item: Feedback) -> str:
    score = "" if item.score is None else f" {fmt.number(item.score)}"
    name = f" {item.name}" if item.name else ""
    head = f"{item.source}: {item.kind}{name}{score}" + (f", by {item.actor}" if item.actor else "")
    text = page.text(item.text) if item.text else ""
    return f'<div class="ns-judged"><b>{fmt.escape(head)}</b>{text}</div>'


def _facts(turn: Turn) -> str:
    usage = turn.usage
    facts = [
        f"{usage.input_tokens:,} tokens in" if usage and usage.input_tokens is not None else "",
        f"{usage.output_tokens:,} out" if usage and usage.output_tokens is not None else "",
        fmt.duration(turn.latency_s) if turn.latency_s is not None else "",
        f"finished: {turn.finish_reason}" if turn.finish_reason else "",
        f"observation {turn.observation_source}" if turn.observation_source != "live" else "",
        turn.policy_version or "",
    ]
    shown = " · ".join(fact for fact in facts if fact)
    return f'<p class="ns-fact">{fmt.escape(shown)}</p>' if shown else ""


def _end(page: _Page, trajectory: Trajectory) -> str:
    """How it ended, and every judgement of the whole."""
    source = f" (said by {trajectory.outcome_source})" if trajectory.outcome_source else ""
    reason = f" · stopped: {trajectory.stop_reason}" if trajectory.stop_reason else ""
    head = f"{fmt.OUTCOMES[trajectory.outcome]}{source}{reason}"
    whole = "".join(_judgement(page, item) for item in page.feedback if item.turn is None)
    quotes = "".join(_quote(item) for item in page.evidence if item.turn is None)
    return f'<section class="ns-end"><b>{fmt.escape(head)}</b>{quotes}{whole}</section>'

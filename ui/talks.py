"""A trajectory on a page: its facts, its turns a few at a time, and long messages in full on demand."""

from dataclasses import replace

import streamlit as st

from components.records import FailureCase, Trajectory
from ui import conversation, markup
from ui import format as fmt

TURNS_AT_ONCE = 20
FULL = 60_000
"""Characters of one message shown at most, when asked for it whole."""


def facts(trajectory: Trajectory) -> None:
    """What is known of it beside its messages."""
    source = trajectory.source
    place = "" if source is None else f"{source.uri} ({source.format})"
    if source is not None and source.start is not None and source.end is not None:
        place += f", bytes {source.start:,} to {source.end:,}"
    pairs = (
        ("trajectory", trajectory.id),
        ("started", fmt.moment(trajectory.started_at)),
        ("outcome", fmt.OUTCOMES[trajectory.outcome]),
        ("stopped", trajectory.stop_reason or fmt.UNKNOWN),
        ("policy", trajectory.policy or fmt.UNKNOWN),
        ("memory", f"revision {trajectory.memory_revision}" if trajectory.memory_revision else ""),
        ("split", trajectory.split or fmt.UNKNOWN),
        ("task", trajectory.task_id or ""),
        ("conversation", trajectory.conversation_id or ""),
        ("group", trajectory.group_id or ""),
        ("marks", ", ".join(trajectory.marks)),
        ("source", place),
    )
    st.html(markup.facts([(name, fmt.gist(value, 300)) for name, value in pairs if value]))


def show(trajectory: Trajectory, key: str, case: FailureCase | None = None) -> None:
    """Every message, tool call and judgement; the case's first wrong turn is marked."""
    part = _part(trajectory, key, case)
    first = conversation.talk(part, case)
    if first.num_hidden:
        whole = st.toggle(
            f"Show long messages in full ({first.num_hidden:,} characters are hidden)",
            key=f"{key} full {trajectory.id}",
        )
        if whole:
            first = conversation.talk(part, case, FULL)
    st.html(first.html)


def _part(trajectory: Trajectory, key: str, case: FailureCase | None) -> Trajectory:
    """The turns to show; a long trajectory opens where it first went wrong."""
    num = len(trajectory.turns)
    if num <= TURNS_AT_ONCE:
        return trajectory
    wrong = case.turn if case and case.turn is not None else 0
    at = next((place for place, turn in enumerate(trajectory.turns) if turn.index == wrong), 0)
    starts = list(range(0, num, TURNS_AT_ONCE))
    start = st.select_slider(
        f"Turns, of {num:,}",
        starts,
        value=starts[at // TURNS_AT_ONCE],
        format_func=lambda first: f"{first} to {min(num, first + TURNS_AT_ONCE) - 1}",
        key=f"{key} turns {trajectory.id}",
    )
    turns = trajectory.turns[start : start + TURNS_AT_ONCE]
    is_last = start + TURNS_AT_ONCE >= num
    return replace(trajectory, turns=turns, tail=trajectory.tail if is_last else ())

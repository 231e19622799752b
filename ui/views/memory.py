"""Memory: the lessons in the bank, where each came from and how it fared; revisions, what they changed, and the way back."""

import streamlit as st

from components.records import MemoryEntry
from store import memory, trajectories
from store.db import Conn
from store.memory import Changed, Revision
from ui import format as fmt
from ui import listing, markup, session

BANK, REVISIONS = "Lessons", "Revisions"
NUM_REVISIONS = 200
NUM_CHANGES = 30
REASON = "rollback reason"


def show() -> None:
    st.title("Memory")
    session.show_said()
    with session.database().connect() as conn:
        head = memory.head(conn, session.agent())
        if not head:
            st.info(
                "Memory is empty. A night writes lessons from conversations that a person put right."
            )
            return
        st.caption(f"Revision {head} serves: a day that begins now recalls its lessons.")
        part = st.segmented_control(
            "Part", [BANK, REVISIONS], default=BANK, label_visibility="collapsed", required=True
        )
        if part == BANK:
            _bank(conn, head)
        else:
            _revisions(conn, head)


def _bank(conn: Conn, head: int) -> None:
    at = listing.place("memory", memory.size(conn, session.agent(), head), head)
    page = memory.page(conn, session.agent(), head, at.size, at.offset)
    left, right = st.columns([0.36, 0.64], gap="large")
    with left:
        st.caption(f"{fmt.plural(at.total, 'lesson')} in revision {head}")
        ids = [entry.id for entry in page]
        id = listing.opened("memory", ids)
        id = id if id in ids else next(iter(ids), None)
        listing.show(at, [listing.Entry(e.id, fmt.gist(e.cue, 80), _note(e)) for e in page], id)
    entry = next((each for each in page if each.id == id), None)
    with right:
        if entry is None:
            st.info("This revision holds no lesson.")
        else:
            _entry(conn, entry)


def _note(entry: MemoryEntry) -> str:
    return f"{entry.kind} · version {entry.version} · {_fared(entry)}"


def _fared(entry: MemoryEntry) -> str:
    if not entry.uses:
        return "not used yet"
    return f"{fmt.plural(entry.uses, 'use')}, {entry.successes:,} succeeded"


def _entry(conn: Conn, entry: MemoryEntry) -> None:
    st.subheader(fmt.label(fmt.gist(entry.cue, 160)), anchor=False)
    shown = fmt.cut(entry.content, 6000)
    st.html(markup.passage(shown.text, shown.num_hidden))
    rate = entry.successes / entry.uses if entry.uses else None
    columns = st.columns(3)
    columns[0].metric("Uses", fmt.count(entry.uses))
    columns[1].metric("Succeeded", fmt.count(entry.successes))
    columns[2].metric("Success when used", fmt.percent(rate))
    made = entry.lineage
    pairs = [
        ("entry", entry.id),
        ("kind", f"{entry.kind}, version {entry.version}"),
        ("written by", f"{made.plugin} ({made.engine})"),
    ]
    st.html(markup.facts([(name, fmt.gist(value, 200)) for name, value in pairs]))
    st.markdown("**Comes from**")
    with st.container(key="list-sources", gap=None):
        for source in entry.provenance[:6]:
            _source(conn, entry, source)
    if len(entry.provenance) > 6:
        st.caption(f"and {len(entry.provenance) - 6} more")


def _source(conn: Conn, entry: MemoryEntry, source: str) -> None:
    found = trajectories.shown(conn, source)
    if found is None:
        st.caption(fmt.label(f"{fmt.gist(source, 80)} (not in the store)"))
        return
    opening = next((m.text for m in found.messages if m.role == "user" and m.text), found.id)
    if st.button(
        fmt.label(fmt.gist(opening, 90)),
        key=f"source {entry.id} {source}",
        icon=":material/forum:",
        type="tertiary",
        width="stretch",
    ):
        listing.link("trajectories", source)
        st.switch_page("views/trajectories.py")


def _revisions(conn: Conn, head: int) -> None:
    known = memory.revisions(conn, session.agent(), NUM_REVISIONS)
    at = listing.place("revisions", len(known), head)
    page = known[at.offset : at.offset + at.size]
    left, right = st.columns([0.36, 0.64], gap="large")
    ids = [str(row.revision) for row in page]
    id = listing.opened("revisions", ids)
    id = id if id in ids else next(iter(ids), None)
    with left:
        st.caption(fmt.plural(len(known), "revision"))
        entries = [
            listing.Entry(
                str(row.revision),
                f"Revision {row.revision} · {fmt.gist(_why(row), 60)}",
                f"{fmt.moment(row.made_at)} · {fmt.gist(row.actor, 40)}",
            )
            for row in page
        ]
        listing.show(at, entries, id)
    row = next((each for each in page if str(each.revision) == id), None)
    with right:
        if row is not None:
            _revision(conn, row, head)


def _why(row: Revision) -> str:
    if row.restores is None:
        return row.reason
    return f"back to {row.restores}: {row.reason}"


def _revision(conn: Conn, row: Revision, head: int) -> None:
    st.subheader(f"Revision {row.revision}", anchor=False)
    st.caption(fmt.label(f"{fmt.moment(row.made_at)}, {row.actor}: {fmt.gist(_why(row), 300)}"))
    changes = memory.diff(conn, session.agent(), row.parent or 0, row.revision, NUM_CHANGES)
    st.markdown(f"**What it changed** against revision {row.parent or 0}")
    _show_changes(changes)
    if row.revision != head:
        _rollback_form(conn, row, head)


def _show_changes(changes: list[Changed]) -> None:
    if not changes:
        st.caption("Nothing.")
    for before, after in changes:
        entry = after or before
        if entry is None:
            continue
        sign = "+ added" if before is None else "− removed" if after is None else "± rewritten"
        name = f"{sign}: {fmt.gist(entry.cue, 120)}"
        old = before.content if before else ""
        new = after.content if after else ""
        text = fmt.diff(old[:4000], new[:4000], ("before", "after"))
        lines = text.splitlines()[2:] or ["(content unchanged)"]
        st.caption(fmt.label(name))
        st.html(markup.difference(lines))
    if len(changes) == NUM_CHANGES:
        st.caption(f"The first {NUM_CHANGES} changes are shown.")


def _rollback_form(conn: Conn, row: Revision, head: int) -> None:
    undone = memory.diff(conn, session.agent(), head, row.revision, NUM_CHANGES)
    with st.container(border=True):
        st.markdown(f"**Go back to revision {row.revision}**")
        st.caption(
            f"Makes revision {head + 1}, which holds what revision {row.revision} held: "
            f"{fmt.plural(len(undone), 'lesson')} will differ from now. Nothing is deleted. "
            "It serves from the next day on."
        )
        with st.form(f"rollback form {row.revision}", border=False):
            st.text_input("Reason", key=REASON, placeholder="Why go back? Kept with the revision")
            st.form_submit_button(
                "Go back",
                key=f"rollback {row.revision} {head}",
                type="primary",
                on_click=_go_back,
                args=(row.revision, head),
            )


def _go_back(revision: int, seen_head: int) -> None:
    if not session.is_named():
        return
    reason = str(st.session_state.get(REASON, "")).strip()
    if not reason:
        session.say("warning", "Going back needs a reason. Nothing was written.")
        return
    agent = session.agent()
    with session.writing() as conn:
        if memory.head(conn, agent) != seen_head:
            session.say("warning", "Memory moved on meanwhile. Nothing was written; look again.")
            return
        made = memory.rollback(conn, agent, revision, session.actor(), reason, session.now())
        st.session_state[REASON] = ""
        session.say("success", f"Revision {made} holds what revision {revision} held.")
        listing.choose("revisions", None)


if __name__ == "__main__":
    show()

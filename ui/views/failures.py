"""Failures: the queue on the left, the open case on the right; one click decides and opens the next."""

from typing import Literal, get_args

import streamlit as st

from components.errors import StoreError
from components.records import FailureMode, Fault, ReviewVerdict, Trajectory
from store import bundles, cases, modes, reviews, trajectories
from store.cases import CaseFilter, StoredCase
from store.db import Conn
from ui import decisions, listing, markup, session, talks
from ui import format as fmt

State = Literal["open", "confirmed", "dismissed"]
STATES: dict[str, State | None] = {
    "Open": "open",
    "Confirmed": "confirmed",
    "Dismissed": "dismissed",
    "All": None,
}
FAULTS: list[Fault | Literal[""]] = ["", *get_args(Fault)]
# Verdict, its button, its key on the keyboard, its weight on the page.
DECISIONS: tuple[tuple[ReviewVerdict, str, str, Literal["primary", "secondary"]], ...] = (
    ("confirmed", "Confirm", "y", "primary"),
    ("dismissed", "Dismiss", "x", "secondary"),
)


def show() -> None:
    st.title("Failures")
    with session.database().connect() as conn:
        known = {mode.id: mode for mode in modes.of_agent(conn, session.agent())}
        left, right = st.columns([0.34, 0.66], gap="large")
        with left:
            queue, selected = _queue(conn, known)
        with right:
            session.show_said()
            if selected is None:
                _nothing(conn)
            else:
                _case(conn, selected, known, _after(queue, selected))


def _queue(conn: Conn, known: dict[str, FailureMode]) -> tuple[list[StoredCase], StoredCase | None]:
    """The filters and one page of cases; and the case to show, which a link may name."""
    wanted = _filter(conn, known)
    at = listing.place(decisions.QUEUE, cases.count(conn, wanted), wanted)
    page = cases.page(conn, wanted, at.size, at.offset)
    named = st.query_params.get("case")
    if named and listing.chosen(decisions.QUEUE) is None:
        listing.choose(decisions.QUEUE, named)
    st.query_params.pop("case", None)
    id = listing.opened(decisions.QUEUE, [item.case.id for item in page])
    entries = [
        listing.Entry(item.case.id, fmt.gist(item.case.summary, 76), _note(item, known))
        for item in page
    ]
    st.caption(fmt.plural(at.total, "case"))
    listing.show(at, entries, id)
    return page, _find(conn, page, id)


def _find(conn: Conn, page: list[StoredCase], id: str | None) -> StoredCase | None:
    own = next((item for item in page if item.case.id == id), None)
    if own is not None or id is None:
        return own
    try:
        return cases.get(conn, [id])[0]
    except StoreError:
        session.say("warning", f"There is no case {fmt.gist(id)}.")
        return next(iter(page), None)


def _filter(conn: Conn, known: dict[str, FailureMode]) -> CaseFilter:
    state = st.segmented_control(
        "State",
        list(STATES),
        default="Open",
        key="state",
        label_visibility="collapsed",
        required=True,
    )
    ids = sorted(known, key=lambda id: known[id].name)
    mode_id = st.selectbox(
        "Mode",
        ["", *ids],
        format_func=lambda id: fmt.gist(known[id].name) if id else "every mode",
        key="mode",
    )
    first, second = st.columns(2)
    fault = first.selectbox("Fault", FAULTS, format_func=lambda name: name or "any", key="fault")
    nights = sorted({night for mode in known.values() for night in mode.counts}, reverse=True)
    night = second.selectbox(
        "Night", ["", *nights], format_func=lambda name: name or "all", key="night"
    )
    return CaseFilter(
        session.agent(), night or None, fault or None, None, mode_id or None, STATES[state]
    )


def _note(item: StoredCase, known: dict[str, FailureMode]) -> str:
    mode = known.get(item.case.mode_id or "")
    verdict = "" if item.case.review is None else fmt.VERDICTS[item.case.review.verdict]
    parts = (verdict, item.night, fmt.gist(mode.name, 44) if mode else "no mode")
    return " · ".join(part for part in parts if part)


def _after(queue: list[StoredCase], selected: StoredCase) -> str | None:
    """The case to open when this one is decided: the next of the page, else the one before."""
    ids = [item.case.id for item in queue]
    if selected.case.id not in ids:
        return None
    at = ids.index(selected.case.id)
    rest = ids[at + 1 :] or ids[:at][-1:]
    return rest[0] if rest else None


def _nothing(conn: Conn) -> None:
    if cases.count(conn, CaseFilter(agent=session.agent())):
        st.info("No case fits these filters. What you decided counts in the next night.")
    else:
        st.info(
            "No failures yet. `nightshift day` leaves logs, `nightshift night` finds what failed."
        )


def _case(
    conn: Conn, seen: StoredCase, known: dict[str, FailureMode], following: str | None
) -> None:
    case = seen.case
    trajectory = trajectories.shown(conn, case.trajectory_id)
    mode = known.get(case.mode_id or "")
    st.subheader(fmt.label(fmt.gist(case.summary, 200)), anchor=False)
    turn = "no single turn" if case.turn is None else f"turn {case.turn}"
    pairs = [
        ("mode", fmt.gist(mode.name, 120) if mode else "none"),
        ("fault", f"{case.fault} · first wrong: {turn}"),
        ("signature", fmt.gist(fmt.signature(case.signature), 160)),
        ("night", f"{seen.night}{_fate(conn, case.trajectory_id)}"),
    ]
    st.html(markup.facts(pairs))
    _bar(seen, trajectory, following)
    with st.container(horizontal=True):
        _change_form(seen, known)
        if mode is not None:
            _rename_form(conn, mode)
        _past(conn, seen)
    if trajectory is None:
        st.warning(fmt.label(f"Trajectory {case.trajectory_id} is not in the store any more."))
        return
    talks.show(trajectory, "failures", case)
    with st.expander("About this trajectory"):
        talks.facts(trajectory)


def _fate(conn: Conn, trajectory_id: str) -> str:
    """What the latest bundle made of the trajectory."""
    last = next(iter(bundles.recent(conn, session.agent(), 1)), None)
    if last is None:
        return ""
    fate = bundles.fates(conn, last.id, [trajectory_id]).get(trajectory_id)
    if fate is None:
        return f" · not in the data of {last.night}"
    if fate.num_kept:
        return f" · kept in the data of {last.night}"
    return f" · left out of the data of {last.night}: {fmt.gist(fate.reason or '', 90)}"


def _bar(seen: StoredCase, trajectory: Trajectory | None, following: str | None) -> None:
    """Confirm, dismiss, and the note that goes with either."""
    case = seen.case
    split = trajectory.split if trajectory else None
    verdict = case.review.verdict if case.review else None
    with st.container(key="decide", horizontal=True, vertical_alignment="bottom"):
        for name, text, key, kind in DECISIONS:
            st.button(
                text,
                key=f"{name} {case.id} {seen.version}",
                type=kind,
                shortcut=key,
                help=decisions.effect(name, case, split),
                disabled=verdict == name,
                on_click=decisions.decide,
                args=(seen, name, split, following),
            )
        st.text_input(
            "Note",
            key=decisions.NOTE,
            placeholder="Note, kept with the decision (optional)",
            label_visibility="collapsed",
        )
    if case.review is not None:
        when = fmt.moment(case.review.decided_at)
        reason = f": “{fmt.gist(case.review.reason, 160)}”" if case.review.reason else ""
        st.caption(
            fmt.label(f"{fmt.VERDICTS[case.review.verdict]} by {case.review.actor}, {when}{reason}")
        )


def _change_form(seen: StoredCase, known: dict[str, FailureMode]) -> None:
    """Another mode, fault or summary."""
    case = seen.case
    with st.popover("Change the case", icon=":material/edit:"):
        ids = sorted(known, key=lambda id: known[id].name)
        at = ids.index(case.mode_id) if case.mode_id in ids else None
        version = f"{case.id} {seen.version}"
        mode_id = st.selectbox(
            "Mode",
            ids,
            index=at,
            format_func=lambda id: fmt.gist(known[id].name),
            key=f"new mode {version}",
        )
        faults = list(get_args(Fault))
        fault = st.selectbox("Fault", faults, faults.index(case.fault), key=f"new fault {version}")
        summary = st.text_area("Summary", case.summary[:2000], key=f"new summary {version}")
        wanted = reviews.Change(
            actor="",
            summary=summary if summary.strip() and summary != case.summary[:2000] else None,
            mode_id=mode_id if mode_id != case.mode_id else None,
            fault=fault if fault != case.fault else None,
        )
        st.button(
            "Save",
            key=f"save {version}",
            type="primary",
            disabled=not (wanted.summary or wanted.mode_id or wanted.fault),
            on_click=decisions.change,
            args=(seen, wanted),
        )


def _rename_form(conn: Conn, mode: FailureMode) -> None:
    with st.popover("Rename the mode", icon=":material/label:"):
        version = modes.version(conn, mode.id)
        name = st.text_input("Name", mode.name[:200], key=f"name {mode.id} {version}")
        st.button(
            "Rename",
            key=f"rename {mode.id} {version}",
            type="primary",
            disabled=not name.strip() or name == mode.name,
            on_click=decisions.rename,
            args=(mode.id, version, name),
        )


def _past(conn: Conn, seen: StoredCase) -> None:
    """Who decided what so far."""
    if not seen.version:
        return
    with st.popover(fmt.plural(seen.version, "decision"), icon=":material/history:"):
        for item in reviews.history(conn, seen.case.id):
            when = fmt.moment(item.decided_at)
            st.text(f"{when}  {fmt.gist(item.change.actor)}: {decisions.told(item.change)}")


if __name__ == "__main__":
    show()

"""Trajectories: everything the agent did, by night and outcome, each to be read whole."""

from dataclasses import replace

import streamlit as st

from store import cases, nights, trajectories
from store.db import Conn
from store.trajectories import Kind, TrajectoryFilter, TrajectoryRow
from ui import format as fmt
from ui import listing, session, talks

KEY = "trajectories"
KINDS: dict[str, Kind | None] = {
    "Production": "production",
    "Practice": "rollout",
    "Evaluation": "evaluation",
    "All": None,
}
OUTCOMES = {"any": None, "succeeded": True, "failed": False}


def show() -> None:
    st.title("Trajectories")
    session.show_said()
    with session.database().connect() as conn:
        left, right = st.columns([0.34, 0.66], gap="large")
        with left:
            id = _list(conn)
        with right:
            if id is None:
                st.info("No trajectory fits these filters.")
            else:
                _one(conn, id)


def _list(conn: Conn) -> str | None:
    wanted = _filter(conn)
    at = listing.place(KEY, trajectories.count(conn, wanted), wanted)
    page = trajectories.page(conn, wanted, at.size, at.offset)
    named = st.query_params.get("trajectory")
    if named and listing.chosen(KEY) is None:
        listing.choose(KEY, named)
    st.query_params.pop("trajectory", None)
    id = listing.opened(KEY, [row.id for row in page])
    st.caption(fmt.plural(at.total, "trajectory", "trajectories"))
    listing.show(at, [listing.Entry(row.id, _title(row), _note(row)) for row in page], id)
    return id


def _filter(conn: Conn) -> TrajectoryFilter:
    name = st.segmented_control(
        "Kind",
        list(KINDS),
        default="Production",
        key="kind",
        label_visibility="collapsed",
        required=True,
    )
    kind = KINDS[name]
    first, second, third = st.columns(3)
    outcome = OUTCOMES[first.selectbox("Outcome", list(OUTCOMES))]
    known = [row.night for row in nights.recent(conn, session.agent(), 400)]
    night = second.selectbox("Night", ["", *known], format_func=lambda name: name or "all")
    split = third.selectbox(
        "Split", ["", "train", "dev", "test"], format_func=lambda name: name or "all"
    )
    wanted = TrajectoryFilter(session.agent(), kind, night or None, outcome, split or None)
    about = st.text_input("Conversation or task", placeholder="exact id").strip()
    if about and trajectories.count(conn, TrajectoryFilter(task_id=about)):
        return replace(wanted, task_id=about)
    return replace(wanted, conversation_id=about or None)


def _title(row: TrajectoryRow) -> str:
    return f"{fmt.OUTCOMES[row.outcome]} · {fmt.gist(row.conversation_id or row.id, 48)}"


def _note(row: TrajectoryRow) -> str:
    parts = (row.night, fmt.plural(row.num_turns, "turn"), fmt.gist(row.stop_reason or "", 40))
    return " · ".join(part for part in parts if part)


def _one(conn: Conn, id: str) -> None:
    trajectory = trajectories.shown(conn, id)
    if trajectory is None:
        st.warning(fmt.label(f"There is no trajectory {fmt.gist(id)}."))
        return
    found = cases.of_trajectory(conn, id)
    case = found[0].case if found else None
    st.subheader(
        fmt.label(fmt.gist(trajectory.conversation_id or trajectory.id, 120)), anchor=False
    )
    talks.facts(trajectory)
    if case is not None:
        st.caption(fmt.label(f"Failure: {fmt.gist(case.summary, 200)}"))
        if st.button("Open the failure case", icon=":material/rule:"):
            listing.link("failures", case.id)
            st.switch_page("views/failures.py")
    talks.show(trajectory, KEY, case)


if __name__ == "__main__":
    show()

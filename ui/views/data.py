"""Data: what a night's strategy kept and left out, why, what reviews changed, and the strategy itself."""

from datetime import UTC, datetime

import streamlit as st

from components.records import CurationStrategy, Message
from store import bundles, modes, nights, reviews, strategies, trajectories
from store.bundles import BundleRow, Fate
from store.db import Conn
from store.reviews import Decided
from ui import conversation, listing, markup, session, talks
from ui import format as fmt

CHANGED, KEPT, DROPPED, STRATEGY = "What reviews changed", "Kept", "Left out", "Strategy"
EXAMPLES = {"sft": "imitation", "preference": "preference", "anchor": "anchor"}
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def show() -> None:
    st.title("Data")
    session.show_said()
    with session.database().connect() as conn:
        rows = bundles.recent(conn, session.agent(), 60)
        if not rows:
            st.info("No data yet: the first night that finds failures makes some.")
            return
        first, second = st.columns([0.28, 0.72], vertical_alignment="bottom")
        at = first.selectbox(
            "Night",
            range(len(rows)),
            format_func=lambda at: f"{rows[at].night} · {rows[at].num_kept:,} kept",
        )
        with second:
            part = st.segmented_control(
                "Part",
                [CHANGED, KEPT, DROPPED, STRATEGY],
                default=CHANGED,
                key="part",
                label_visibility="collapsed",
                required=True,
            )
        row = rows[at]
        if part == CHANGED:
            _changed(conn, row, _before(rows, at))
        elif part == STRATEGY:
            _strategy(conn, row)
        elif part == KEPT:
            _kept(conn, row)
        else:
            _dropped(conn, row)


def _before(rows: list[BundleRow], at: int) -> BundleRow | None:
    """The data of the night before."""
    return next((row for row in rows[at + 1 :] if row.night < rows[at].night), None)


def _changed(conn: Conn, row: BundleRow, before: BundleRow | None) -> None:
    """Every case decided between two nights, and what became of its trajectory."""
    since, until = _span(conn, row, before)
    decided = reviews.between(conn, session.agent(), since, until)
    if not decided:
        st.info(
            f"Nobody decided a case before night {row.night} began, so reviews changed nothing in its data."
        )
        return
    ids = [item.trajectory_id for item in decided]
    now = bundles.fates(conn, row.id, ids)
    then = bundles.fates(conn, before.id, ids) if before else {}
    gone = sum(_is_out(now.get(id)) and _is_in(then.get(id)) for id in ids)
    back = sum(_is_in(now.get(id)) and _is_out(then.get(id)) for id in ids)
    columns = st.columns(4)
    columns[0].metric("Cases decided", fmt.count(len(decided)))
    columns[1].metric("Taken out of the data", fmt.count(gone))
    columns[2].metric("Brought back", fmt.count(back))
    columns[3].metric("Kept as examples", fmt.count(sum(_is_in(now.get(id)) for id in ids)))
    st.caption(
        f"Decided before night {row.night} began, {fmt.moment(until)}"
        + (f"; compared with the data of {before.night}." if before else ".")
    )
    at = listing.place("changed", len(decided), (row.id,), size=20)
    shown = decided[at.offset : at.offset + at.size]
    table = [_change_row(item, then, now) for item in shown]
    kinds = [
        markup.Column("case"),
        markup.Column("decision", "short"),
        markup.Column("before"),
        markup.Column("now"),
        markup.Column("change", "short"),
    ]
    st.html(markup.table("What reviews changed", kinds, table))
    listing.show(at, [], None)
    _open_one(shown)


def _span(conn: Conn, row: BundleRow, before: BundleRow | None) -> tuple[datetime, datetime]:
    """From the beginning of the night before to that of this night: what curation newly read."""
    begun = nights.get(conn, session.agent(), row.night)
    earlier = nights.get(conn, session.agent(), before.night) if before else None
    return (
        earlier.started_at if earlier else BEGINNING,
        begun.started_at if begun else session.now(),
    )


def _is_in(fate: Fate | None) -> bool:
    return fate is not None and fate.num_kept > 0


def _is_out(fate: Fate | None) -> bool:
    return fate is not None and fate.num_kept == 0


def _told(fate: Fate | None) -> str:
    if fate is None:
        return "not looked at"
    if fate.num_kept:
        weight = "" if fate.weight in (None, 1.0) else f", weight {fmt.number(fate.weight)}"
        return f"kept, {fmt.plural(fate.num_kept, 'example')}{weight}"
    return f"left out: {fmt.gist(fate.reason or '', 90)}"


def _change_row(item: Decided, then: dict[str, Fate], now: dict[str, Fate]) -> list[str]:
    old, new = then.get(item.trajectory_id), now.get(item.trajectory_id)
    moved = "→ taken out" if _is_in(old) and _is_out(new) else ""
    moved = "→ brought back" if _is_out(old) and _is_in(new) else moved
    if old is not None and new is not None and _is_in(old) and _is_in(new):
        moved = "→ weighed anew" if old.weight != new.weight else moved
    verdict = fmt.VERDICTS[item.verdict]
    return [
        fmt.gist(item.summary, 90),
        f"{verdict} by {fmt.gist(item.actor, 30)}",
        _told(old),
        _told(new),
        moved or "as before",
    ]


def _open_one(decided: list[Decided]) -> None:
    names = {item.case_id: fmt.gist(item.summary, 90) for item in decided}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        case_id = st.selectbox("Look at a case again", list(names), format_func=names.__getitem__)
        if st.button("Open", key="open decided", disabled=case_id is None):
            listing.link("failures", case_id)
            st.switch_page("views/failures.py")


def _kept(conn: Conn, row: BundleRow) -> None:
    at = listing.place("kept", row.num_kept, row.id)
    page = bundles.page(conn, row.id, True, at.size, at.offset)
    names = {mode.id: mode.name for mode in modes.of_agent(conn, session.agent())}
    left, right = st.columns([0.34, 0.66], gap="large")
    with left:
        st.caption(fmt.plural(row.num_kept, "example"))
        ids = [str(item.position) for item in page]
        id = listing.chosen("kept") if listing.chosen("kept") in ids else None
        id = id or (ids[0] if ids else None)
        entries = [
            listing.Entry(
                str(item.position),
                fmt.gist(_opening(item.example.messages), 80),
                " · ".join(
                    [EXAMPLES[item.example.kind], *(fmt.gist(names.get(m, m), 50) for m in item.example.mode_ids[:1])]
                ),
            )
            for item in page
            if item.example is not None
        ]  # fmt: skip
        listing.show(at, entries, id)
    item = next((each for each in page if str(each.position) == id), None)
    with right:
        if item is None or item.example is None:
            st.info("Nothing was kept.")
            return
        example = item.example
        aimed = [fmt.gist(names.get(mode, mode), 80) for mode in example.mode_ids]
        pairs = [
            ("kind", EXAMPLES[example.kind]),
            ("weight", fmt.number(example.weight)),
            ("from trajectory", example.trajectory_id),
            ("aimed at", fmt.listed(aimed)),
        ]
        st.html(markup.facts(pairs))
        st.html(conversation.example(example.messages[:60], example.targets).html)
        if example.rejected is not None:
            st.caption("Preferred to")
            st.html(conversation.example([example.rejected], ()).html)


def _opening(messages: tuple[Message, ...]) -> str:
    """What a list shows of an example: the customer's first words, else the first text."""
    said = [message for message in messages if message.text]
    return next((m.text for m in said if m.role == "user"), said[0].text if said else "(no text)")


def _dropped(conn: Conn, row: BundleRow) -> None:
    counts = bundles.reasons(conn, row.id)
    left, right = st.columns([0.34, 0.66], gap="large")
    with left:
        reason = st.selectbox(
            "Reason",
            ["", *counts],
            format_func=lambda text: (
                f"{fmt.gist(text, 90)} ({counts[text]:,})" if text else "every reason"
            ),
        )
        total = counts[reason] if reason else row.num_dropped
        at = listing.place("dropped", total, (row.id, reason))
        page = bundles.page(conn, row.id, False, at.size, at.offset, reason or None)
        st.caption(f"{fmt.plural(total, 'trajectory', 'trajectories')} left out")
        ids = [item.trajectory_id for item in page]
        id = listing.opened("dropped", ids)
        id = id if id in ids else next(iter(ids), None)
        entries = [
            listing.Entry(item.trajectory_id, item.trajectory_id, fmt.gist(item.reason or "", 80))
            for item in page
        ]
        listing.show(at, entries, id)
    with right:
        if not counts:
            st.info("Nothing was left out.")
            return
        table = [[fmt.gist(name, 120), fmt.count(num)] for name, num in counts.items()]
        columns = [markup.Column("reason"), markup.Column("trajectories", "number")]
        st.html(markup.table("Why trajectories were left out", columns, table[:12]))
        trajectory = trajectories.shown(conn, id) if id else None
        if trajectory is None:
            st.caption("The trajectory is not in the store.")
            return
        talks.show(trajectory, "dropped")


def _strategy(conn: Conn, row: BundleRow) -> None:
    own = strategies.get(conn, session.agent(), row.strategy_id)
    if own is None:
        st.info(fmt.label(f"Strategy {row.strategy_id[:12]} is not in the store."))
        return
    parent = strategies.get(conn, session.agent(), own.parent_id) if own.parent_id else None
    left, right = st.columns([0.34, 0.66], gap="large")
    with left:
        pairs = [
            ("strategy", own.id[:16]),
            ("status", own.status),
            ("stage", own.stage),
            ("made by", f"{own.lineage.plugin} ({own.lineage.engine})"),
            ("parent", own.parent_id[:16] if own.parent_id else "none: the first one"),
            ("motivated by", fmt.plural(len(own.motivating_cases), "case")),
        ]
        st.html(markup.facts(pairs))
        _scores(own, parent)
    with right:
        if parent is None:
            st.code(own.source, language="python", height=620, wrap_lines=True)
            return
        view = st.segmented_control(
            "View",
            ["Changes", "Source"],
            default="Changes",
            label_visibility="collapsed",
            required=True,
        )
        if view == "Source":
            st.code(own.source, language="python", height=620, wrap_lines=True)
        else:
            names = (parent.id[:12], own.id[:12])
            text = fmt.diff(parent.source, own.source, names) or "(the same text)"
            st.code(text, language="diff", height=620, wrap_lines=True)


def _scores(own: CurationStrategy, parent: CurationStrategy | None) -> None:
    """Both strategies on the held-out failures."""
    if not own.scores:
        st.caption("Not scored: with fewer than four held-out failures a comparison says nothing.")
        return
    theirs = (parent.scores if parent else None) or {}
    rows = [
        [fmt.words(name), fmt.number(value), fmt.number(theirs.get(name))]
        for name, value in own.scores.items()
    ]
    columns = [
        markup.Column("score"),
        markup.Column("this", "number"),
        markup.Column("parent", "number"),
    ]
    st.html(markup.table("Scores on held-out failures", columns, rows))
    st.caption("Success on held-out failures; turns kept; worth is success less the cost of turns.")


if __name__ == "__main__":
    show()

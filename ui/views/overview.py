"""Overview: what the last nights achieved, what the latest one did, and what waits for a person."""

from typing import NamedTuple

import streamlit as st

from components.records import NightSummary, StageLine
from components.serial import load
from store import nights, promotions
from store.db import Conn
from store.nights import Night
from ui import charts, decisions, markup, session
from ui import format as fmt

NUM_NIGHTS = 14
NUM_MODES = 8
ARMS = {"champion": "champion", "sft_only": "SFT only", "challenger": "challenger"}
STATUS = {"running": "… running", "done": "✓ done", "failed": "✕ failed"}
STAGE = {"done": "✓ done", "unchanged": "= unchanged", "failed": "✕ failed", "skipped": "– skipped"}


class Told(NamedTuple):
    night: Night
    summary: NightSummary | None


def show() -> None:
    with session.database().connect() as conn:
        told = [
            Told(row, load(NightSummary, row.summary) if row.summary else None)
            for row in nights.recent(conn, session.agent(), NUM_NIGHTS)
        ]
        if not told:
            _empty()
            return
        latest = told[0]
        st.title(f"Night {fmt.label(latest.night.night)}", anchor=False)
        session.show_said()
        _headline(latest)
        _waiting(conn, latest)
    if latest.summary is not None:
        _numbers(latest.summary)
    _curve(told)
    if latest.summary is not None:
        _latest(latest.summary)
    _past(told)


def _empty() -> None:
    st.title("No night yet")
    st.write("Two commands make the first one:")
    st.code("nightshift day\nnightshift night", language="bash")
    st.write(
        "The day serves customers and leaves logs. The night reads them, finds what failed, trains a challenger "
        "and shows here whether it is better."
    )


def _headline(told: Told) -> None:
    """One sentence about the night, and its note."""
    night, summary = told
    took = (
        ""
        if night.finished_at is None
        else f", took {fmt.duration((night.finished_at - night.started_at).total_seconds())}"
    )
    champion = f" · champion version {night.champion_version}" if night.champion_version else ""
    st.caption(
        fmt.label(f"{STATUS[night.status]}{took}, began {fmt.moment(night.started_at)}{champion}")
    )
    if summary is not None and summary.note:
        st.warning(fmt.label(summary.note))


def _waiting(conn: Conn, latest: Told) -> None:
    """What a person has to do, as buttons that lead there."""
    waiting = decisions.num_waiting(conn)
    request = promotions.open_request(conn, session.agent())
    first, second = st.columns(2)
    with first.container(border=True, height="stretch"):
        st.markdown(f"**{fmt.plural(waiting, 'failure')} to review**")
        st.caption("Decisions made before the next night begins shape its data.")
        if st.button("Review failures", type="primary", disabled=not waiting):
            st.switch_page("views/failures.py")
    with second.container(border=True, height="stretch"):
        title, text = _offer(conn, latest)
        if request is not None:
            title = f"A {request.action} was asked for"
            text = f"{request.actor}, {fmt.moment(request.requested_at)}: {request.reason}"
        st.markdown(f"**{fmt.label(title)}**")
        st.caption(fmt.label(fmt.gist(text, 220)))
        if st.button("See the evidence"):
            st.switch_page("views/promotion.py")


def _is_promoted(conn: Conn, night: Night) -> bool:
    """Whether the night's challenger was made the champion since."""
    return any(
        (item.action, item.status, item.to_version) == ("promote", "done", night.challenger_version)
        for item in promotions.recent(conn, session.agent())
    )


def _offer(conn: Conn, latest: Told) -> tuple[str, str]:
    night, summary = latest
    if summary is None or summary.accepted is None:
        return "No challenger tonight", "Nothing was offered; the champion goes on serving."
    version = (
        f"Version {night.challenger_version}" if night.challenger_version else "The challenger"
    )
    pair = summary.paired.get("challenger-champion")
    by = ""
    if pair is not None:
        low, high = fmt.points(pair.low), fmt.points(pair.high)
        by = f"{fmt.points(pair.difference)} against the champion (95% from {low} to {high})."
    if summary.accepted and _is_promoted(conn, night):
        return f"{version} was promoted", f"The gate had accepted it: {by}"
    if summary.accepted:
        return f"{version} waits for a person", f"The gate accepted it: {by}"
    failed = [item.name for item in summary.criteria if item.passed is not True]
    return f"{version} was refused by the gate", f"{by} Not met: {fmt.listed(failed)}."


def _curve(told: list[Told]) -> None:
    scores = [
        charts.Score(each.night.night[5:], ARMS[name], arm.mean, arm.low, arm.high)
        for each in reversed(told)
        if each.summary
        for name, arm in each.summary.arms.items()
        if name in ARMS
    ]
    if not scores:
        return
    st.subheader("Success on held-out tasks", anchor=False)
    st.altair_chart(charts.success_curve(scores))


def _latest(summary: NightSummary) -> None:
    left, right = st.columns([0.55, 0.45], gap="large")
    with left:
        st.subheader("Failure modes", anchor=False)
        _modes(summary)
        if summary.lessons:
            st.subheader("Lessons written", anchor=False)
            rows = [[fmt.gist(lesson, 220)] for lesson in summary.lessons[:5]]
            st.html(markup.table("Lessons", [markup.Column("what memory will say")], rows))
    with right:
        st.subheader("Seconds per stage", anchor=False)
        if summary.stages:
            st.altair_chart(charts.stage_seconds([(s.name, s.seconds) for s in summary.stages]))
            st.html(
                markup.table(
                    "Stages",
                    [markup.Column("stage", "short"), markup.Column("what it did")],
                    [_stage(stage) for stage in summary.stages],
                )
            )


def _stage(stage: StageLine) -> list[str]:
    line = fmt.gist(stage.line, 160)
    return [stage.name, line if stage.status == "done" else f"{STAGE[stage.status]}: {line}"]


def _numbers(summary: NightSummary) -> None:
    counts = summary.counts
    pair = summary.paired.get("challenger-champion")
    columns = st.columns(5)
    columns[0].metric("Trajectories", fmt.count(counts.get("trajectories")))
    columns[1].metric("Failures found", fmt.count(counts.get("cases")))
    columns[2].metric(
        "Examples kept",
        fmt.count(counts.get("examples")),
        help=f"{fmt.count(counts.get('dropped'))} trajectories were left out.",
    )
    trained = f"{fmt.count(counts.get('sft_steps'))} + {fmt.count(counts.get('rl_steps'))}"
    has_trained = "sft_steps" in counts or "rl_steps" in counts
    columns[3].metric(
        "Training steps",
        trained if has_trained else fmt.UNKNOWN,
        help="Imitation of the kept examples, then practice in the environment.",
    )
    columns[4].metric(
        "Against the champion",
        fmt.points(pair.difference if pair else None),
        help=None
        if pair is None
        else f"Same {pair.num_tasks} tasks and seeds: {pair.wins} better, {pair.losses} worse, p = {pair.p_value:.2g}.",
    )


def _modes(summary: NightSummary) -> None:
    top = sorted(summary.modes, key=lambda mode: (-mode.count, mode.name))[:NUM_MODES]
    if not top:
        st.caption("None this night.")
        return
    rows = [[fmt.gist(m.name, 90), fmt.MODE_STATUS[m.status], fmt.count(m.count)] for m in top]
    columns = [
        markup.Column("mode"),
        markup.Column("status", "short"),
        markup.Column("cases", "number"),
    ]
    st.html(markup.table("Failure modes of the night", columns, rows))
    if len(summary.modes) > len(top):
        st.caption(f"and {len(summary.modes) - len(top)} more")


def _past(told: list[Told]) -> None:
    st.subheader("Nights", anchor=False)
    columns = [
        markup.Column("night", "short"),
        markup.Column("status", "short"),
        markup.Column("failures", "number"),
        markup.Column("examples", "number"),
        markup.Column("champion", "number"),
        markup.Column("challenger", "number"),
        markup.Column("difference", "number"),
        markup.Column("gate", "short"),
    ]
    st.html(markup.table("The last nights", columns, [_row(each) for each in told]))


def _row(told: Told) -> list[str]:
    night, summary = told
    made = summary or NightSummary((), {}, {}, (), (), {}, {})
    champion, challenger = made.arms.get("champion"), made.arms.get("challenger")
    pair = made.paired.get("challenger-champion")
    gate = {True: "✓ accepted", False: "✕ refused", None: fmt.UNKNOWN}[made.accepted]
    return [
        night.night,
        STATUS[night.status],
        fmt.count(made.counts.get("cases")),
        fmt.count(made.counts.get("examples")),
        fmt.percent(champion.mean if champion else None),
        fmt.percent(challenger.mean if challenger else None),
        fmt.points(pair.difference if pair else None),
        gate,
    ]


if __name__ == "__main__":
    show()

"""Promotion: the evidence for the challenger, and the two things a person may ask for, each with a reason.

The app only asks. A request is kept in the store; `nightshift ui` beside the app, or whichever flow comes next, moves
the alias in the registry and writes what came of it.
"""

from typing import NamedTuple

import streamlit as st

from components.evaluation.confusion import columns
from components.records import ArmScore, Decision, NightSummary, Report
from components.serial import load
from store import bundles, nights, promotions, reports, strategies
from store.db import Conn
from store.promotions import Action, Promotion, Wish
from store.registry import Version
from ui import charts, markup, session
from ui import format as fmt

ARMS = {
    "champion": "champion",
    "sft_only": "SFT only",
    "challenger": "challenger",
    "challenger_without_memory": "challenger without memory",
}
NOT_MOVED = (
    "A request is carried out within seconds by `nightshift ui`, else by the next night or `nightshift promote`. "
    "What became of it is listed below."
)
STATUS = {"requested": "… waits", "done": "✓ done", "refused": "✕ refused"}
WATCH_EVERY_S = 2.0
ALL_TASKS = "all tasks"


class Aliases(NamedTuple):
    champion: Version | None
    challenger: Version | None
    previous: Version | None


def show() -> None:
    st.title("Promotion")
    session.show_said()
    aliases = _aliases()
    with session.database().connect() as conn:
        request = promotions.open_request(conn, session.agent())
        _decide(aliases, request)
        newest = next(iter(reports.recent(conn, session.agent(), 1)), None)
        if newest is None:
            st.info("No report yet: the first night that trains a challenger makes one.")
        else:
            night = nights.get(conn, session.agent(), newest.night)
            summary = load(NightSummary, night.summary) if night and night.summary else None
            answer = _answer(newest.decision)
            st.subheader(fmt.label(f"Report of night {newest.night}: {answer}"), anchor=False)
            left, right = st.columns(2, gap="large")
            with left:
                _evidence(newest.report, summary)
            with right:
                _criteria(newest.decision)
                _lineage(conn, _reported(aliases, newest.report.id), summary)
        _requests(conn)


def _aliases() -> Aliases:
    registry, agent = session.registry(), session.agent()
    return Aliases(
        registry.resolve(agent, "champion"),
        registry.resolve(agent, "challenger"),
        registry.resolve(agent, "previous"),
    )


def _reported(aliases: Aliases, report_id: str) -> Version | None:
    """The version that the report is about."""
    if aliases.challenger and aliases.challenger.tags.get("report") == report_id:
        return aliases.challenger
    versions = session.registry().versions(session.agent())
    return next((each for each in versions if each.tags.get("report") == report_id), None)


def _decide(aliases: Aliases, request: Promotion | None) -> None:
    """Who serves, who is offered, and the two requests."""
    left, right = st.columns(2)
    with left.container(border=True, height="stretch"):
        offered = aliases.challenger
        st.markdown(f"**Challenger: {_name(offered)}**")
        if offered is None:
            st.caption(
                "None is offered. A version that the gate refused is promoted on purpose only, from the command "
                "line: `nightshift promote --version N --override`."
            )
        else:
            made = offered.tags.get("night", fmt.UNKNOWN)
            st.caption(fmt.label(f"Offered by night {made}; the gate accepted it."))
            _form("promote", "Ask for promotion", aliases, request)
    with right.container(border=True, height="stretch"):
        st.markdown(f"**Champion: {_name(aliases.champion)}**")
        if aliases.previous is None:
            st.caption("There is no earlier champion to go back to.")
        else:
            st.caption(f"Before it served {_name(aliases.previous)}.")
            _form("rollback", f"Ask to go back to {_name(aliases.previous)}", aliases, request)
    if request is not None:
        _open(request)
        _watch(request.id)
    else:
        st.caption(NOT_MOVED)


def _name(version: Version | None) -> str:
    return "none" if version is None else f"version {fmt.label(version.version)}"


def _form(action: Action, text: str, aliases: Aliases, request: Promotion | None) -> None:
    target = aliases.challenger if action == "promote" else None
    with st.form(f"{action} form", border=False):
        st.text_input(
            "Reason",
            key=f"{action} reason",
            placeholder="Why? Kept with the request",
            disabled=request is not None,
        )
        st.form_submit_button(
            text,
            key=f"ask {action}",
            type="primary" if action == "promote" else "secondary",
            disabled=request is not None,
            on_click=_ask,
            args=(action, aliases.champion, target),
        )


def _open(request: Promotion) -> None:
    aim = f" of version {request.to_version}" if request.to_version else ""
    text = (
        f"{request.actor} asked for a {request.action}{aim}, {fmt.moment(request.requested_at)}: "
        f"“{fmt.gist(request.reason, 300)}”. It is not carried out yet; the champion serves until then. "
        "One request at a time: another can be made when this one is closed."
    )
    st.warning(fmt.label(text))


@st.fragment(run_every=WATCH_EVERY_S)
def _watch(request_id: int) -> None:
    """Show the page anew once the open request is closed."""
    with session.database().connect() as conn:
        request = promotions.open_request(conn, session.agent())
    if request is None or request.id != request_id:
        st.rerun()


def _ask(action: Action, champion: Version | None, target: Version | None) -> None:
    if not session.is_named():
        return
    reason = str(st.session_state.get(f"{action} reason", "")).strip()
    if not reason:
        session.say("warning", f"A {action} needs a reason. Nothing was asked for.")
        return
    wish = Wish(
        agent=session.agent(),
        action=action,
        from_version=champion.version if champion else None,
        to_version=target.version if target else None,
        actor=session.actor(),
        reason=reason,
    )
    with session.writing() as conn:
        promotions.ask(conn, wish, session.now())
        st.session_state[f"{action} reason"] = ""
        session.say("success", "Your request is kept.")


def _answer(decision: Decision | None) -> str:
    if decision is None:
        return "not judged yet"
    return "accepted by the gate" if decision.accepted else "refused by the gate"


def _evidence(report: Report, summary: NightSummary | None) -> None:
    st.markdown("**Success, with 95% intervals over tasks**")
    _arms(summary)
    st.markdown("**Difference to the champion**, overall and per slice")
    st.altair_chart(charts.differences(_differences(report)))
    paired = report.paired
    st.caption(
        f"All tasks: {fmt.points(paired.difference)}, 95% from {fmt.points(paired.low)} to {fmt.points(paired.high)}; "
        f"{paired.wins} tasks better, {paired.losses} worse, p = {paired.p_value:.2g}."
    )
    if summary and summary.confusion:
        _endings(summary.confusion)


def _endings(confusion: dict[str, dict[str, int]]) -> None:
    """Where the champion's failures went."""
    st.markdown("**How the same tasks ended**")
    names = columns(confusion)
    heads = [markup.Column("champion ↓ challenger →")]
    heads += [markup.Column(fmt.words(name), "number") for name in names]
    rows = [
        [fmt.words(before), *(fmt.count(row[name]) if row.get(name) else "" for name in names)]
        for before, row in confusion.items()
    ]
    st.html(markup.table("Endings of the champion by endings of the challenger", heads, rows))


def _criteria(decision: Decision | None) -> None:
    st.markdown("**Criteria of the gate**")
    if decision is None:
        st.caption("The gate has not answered.")
        return
    st.html(markup.checks([(c.passed, c.name, fmt.gist(c.reason, 600)) for c in decision.criteria]))


def _arms(summary: NightSummary | None) -> None:
    arms: dict[str, ArmScore] = summary.arms if summary else {}
    rows = [
        [
            ARMS.get(name, fmt.words(name)),
            fmt.percent(arm.mean),
            fmt.interval(arm.low, arm.high),
            f"{arm.num_tasks} × {arm.num_seeds}",
        ]
        for name, arm in arms.items()
    ]
    columns = [
        markup.Column("policy"),
        markup.Column("success", "number"),
        markup.Column("95% interval", "number"),
        markup.Column("tasks × seeds", "number"),
    ]
    st.html(markup.table("Success of each policy", columns, rows))


def _differences(report: Report) -> list[charts.Difference]:
    """All tasks with their interval, then every slice."""
    paired = report.paired
    rows = [
        charts.Difference(ALL_TASKS, paired.difference, paired.num_tasks, paired.low, paired.high)
    ]
    for name, tasks in sorted(report.slices.items()):
        gains = [gain for task in tasks if (gain := _gain(report, task)) is not None]
        if gains:
            label = fmt.gist(fmt.words(name.removeprefix("skill:")), 40)
            rows.append(charts.Difference(label, sum(gains) / len(gains), len(gains)))
    return rows


def _gain(report: Report, task: str) -> float | None:
    """Challenger minus champion on one task, over the seeds that scored both."""
    arms = [report.scores.get(arm, {}).get(task, ()) for arm in ("champion", "challenger")]
    pairs = [
        (ours, theirs)
        for theirs, ours in zip(*arms, strict=False)
        if ours is not None and theirs is not None
    ]
    return sum(ours - theirs for ours, theirs in pairs) / len(pairs) if pairs else None


def _lineage(conn: Conn, version: Version | None, summary: NightSummary | None) -> None:
    """What the challenger was made from."""
    st.markdown("**Where it comes from**")
    bundle_id = summary.bundle_id if summary else None
    strategy_id = summary.strategy_id if summary else None
    sizes = {row.id: row for row in bundles.recent(conn, session.agent(), 60)}
    row = sizes.get(bundle_id or "")
    strategy = strategies.get(conn, session.agent(), strategy_id) if strategy_id else None
    tags = version.tags if version else {}
    data = fmt.UNKNOWN
    if row is not None:
        data = f"{row.id[:12]}: {row.num_kept:,} examples kept, {row.num_dropped:,} left out"
    pairs = [
        ("version", version.version if version else "not registered"),
        ("night", tags.get("night", fmt.UNKNOWN)),
        ("parent", f"version {tags['parent_version']}" if "parent_version" in tags else fmt.UNKNOWN),
        ("data", data),
        ("strategy", f"{strategy.id[:12]}, {strategy.stage}" if strategy else fmt.UNKNOWN),
        ("memory", f"revision {summary.memory_revision}" if summary and summary.memory_revision else fmt.UNKNOWN),
        ("weights", tags.get("adapter", fmt.UNKNOWN)[:16]),
        ("checkpoint", tags.get("checkpoint_digest", fmt.UNKNOWN)[:16]),
    ]  # fmt: skip
    st.html(markup.facts([(name, fmt.gist(value, 200)) for name, value in pairs]))


def _requests(conn: Conn) -> None:
    past = promotions.recent(conn, session.agent(), 20)
    if not past:
        return
    st.subheader("Requests so far", anchor=False)
    columns = [
        markup.Column("asked", "short"),
        markup.Column("by", "short"),
        markup.Column("request", "short"),
        markup.Column("reason"),
        markup.Column("what came of it"),
    ]
    rows = [
        [
            fmt.moment(item.requested_at),
            fmt.gist(item.actor, 30),
            f"{item.action} {item.to_version or ''}".strip(),
            fmt.gist(item.reason, 200),
            f"{STATUS[item.status]}{f': {fmt.gist(item.outcome, 160)}' if item.outcome else ''}",
        ]
        for item in past
    ]
    st.html(markup.table("Requests for promotion and rollback", columns, rows))


if __name__ == "__main__":
    show()

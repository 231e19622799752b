"""Evaluation reports, each with the gate's decision."""

from typing import Any, NamedTuple

from components.errors import StoreError
from components.records import Decision, Report
from components.serial import dump, load
from store.clean import clean_json
from store.db import Conn

PUT = """
insert into report (id, agent, night, champion, challenger, body) values (%s, %s, %s, %s, %s, %s)
on conflict (id) do nothing
"""
DECIDE = "update report set decision = %s where id = %s"
ROWS = "select body, decision, night from report "
GET = ROWS + "where id = %s"
OF_NIGHT = ROWS + "where agent = %s and night = %s order by sequence"
RECENT = ROWS + "where agent = %s order by sequence desc limit %s"


class StoredReport(NamedTuple):
    report: Report
    decision: Decision | None
    """None until the gate has judged it."""
    night: str


def put(conn: Conn, report: Report, agent: str, night: str) -> None:
    """Write a report; one that is there stays."""
    body = clean_json(dump(report)).text
    conn.execute(PUT, (report.id, agent, night, report.champion, report.challenger, body))


def decide(conn: Conn, decision: Decision) -> None:
    """Write the gate's answer to its report.

    Raises:
        StoreError: there is no such report.
    """
    values = (clean_json(dump(decision)).text, decision.report_id)
    if conn.execute(DECIDE, values).rowcount == 0:
        raise StoreError(f"no report {decision.report_id!r} to decide on")


def get(conn: Conn, report_id: str) -> StoredReport | None:
    row = conn.execute(GET, (report_id,)).fetchone()
    return _stored(row) if row else None


def of_night(conn: Conn, agent: str, night: str) -> list[StoredReport]:
    """The reports of a night, in the order they were made."""
    return [_stored(row) for row in conn.execute(OF_NIGHT, (agent, night))]


def recent(conn: Conn, agent: str, limit: int = 30) -> list[StoredReport]:
    """The latest reports of an agent, newest first."""
    return [_stored(row) for row in conn.execute(RECENT, (agent, limit))]


def _stored(row: tuple[Any, ...]) -> StoredReport:
    body, decision, night = row
    return StoredReport(
        load(Report, body), None if decision is None else load(Decision, decision), night
    )

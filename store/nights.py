"""Nights of each agent: when each ran, on which champion, and what came of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import class_row

from store.clean import clean_json
from store.db import Conn

PUT = """
insert into night (night, agent, status, champion_version, challenger_version, summary, started_at, finished_at)
values (%s, %s, %s, %s, %s, %s, %s, %s)
on conflict (agent, night) do update set status = excluded.status,
    champion_version = excluded.champion_version, challenger_version = excluded.challenger_version,
    summary = excluded.summary, started_at = excluded.started_at, finished_at = excluded.finished_at
"""
GET = "select * from night where agent = %s and night = %s"
RECENT = "select * from night where agent = %s order by night desc limit %s"


@dataclass(frozen=True, slots=True)
class Night:
    night: str
    """ISO date: the scheduled logical date."""
    agent: str
    status: Literal["running", "done", "failed"]
    started_at: datetime
    champion_version: str | None = None
    challenger_version: str | None = None
    summary: dict[str, Any] | None = None
    """`records.NightSummary` as JSON: what the report and the overview show; None until the first stage ended."""
    finished_at: datetime | None = None


def put(conn: Conn, night: Night) -> None:
    """Write a night's row, replacing what stood there."""
    conn.execute(
        PUT,
        (
            night.night,
            night.agent,
            night.status,
            night.champion_version,
            night.challenger_version,
            clean_json(night.summary or {}).text,
            night.started_at,
            night.finished_at,
        ),
    )


def get(conn: Conn, agent: str, night: str) -> Night | None:
    with conn.cursor(row_factory=class_row(Night)) as cursor:
        return cursor.execute(GET, (agent, night)).fetchone()


def recent(conn: Conn, agent: str, limit: int = 30) -> list[Night]:
    """The latest nights of an agent, newest first."""
    with conn.cursor(row_factory=class_row(Night)) as cursor:
        return cursor.execute(RECENT, (agent, limit)).fetchall()

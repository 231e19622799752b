"""Quarantine: bytes of a log that are no record, with file, place and reason; each reported once."""

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg.rows import class_row

from components.protocols import Rejected
from components.serial import digest
from store.clean import clean_text
from store.db import Conn, insert_new

MAX_EXCERPT = 2000
COLUMNS = (
    "key",
    "agent",
    "night",
    "uri",
    "line",
    "start_byte",
    "end_byte",
    "reason",
    "excerpt",
)
PAGE = """
select agent, night, uri, line, start_byte as start, end_byte as end, reason, excerpt as text from quarantine
where agent = %(agent)s and (%(night)s::text is null or night = %(night)s)
order by night desc, uri, start_byte, key limit %(limit)s offset %(offset)s
"""
COUNT = """
select count(*) from quarantine where agent = %(agent)s and (%(night)s::text is null or night = %(night)s)
"""


@dataclass(frozen=True, slots=True)
class Quarantined:
    agent: str
    night: str
    uri: str
    line: int | None
    start: int
    end: int
    reason: str
    text: str
    """The bytes as text, shortened."""


def put(conn: Conn, rejected: Iterable[Rejected], uri: str, agent: str, night: str) -> int:
    """Write what was rejected in one file; how many were not known yet."""
    rows = [
        (
            digest([uri, item.start, item.end, item.reason]),
            agent,
            night,
            clean_text(uri),
            item.line,
            item.start,
            item.end,
            clean_text(item.reason)[:MAX_EXCERPT],
            clean_text(item.text)[:MAX_EXCERPT],
        )
        for item in rejected
    ]
    return insert_new(conn, "quarantine", COLUMNS, rows)


def page(
    conn: Conn, agent: str, night: str | None = None, limit: int = 50, offset: int = 0
) -> list[Quarantined]:
    """Newest night first; all nights when none is named."""
    values = {"agent": agent, "night": night, "limit": limit, "offset": offset}
    with conn.cursor(row_factory=class_row(Quarantined)) as cursor:
        return cursor.execute(PAGE, values).fetchall()


def count(conn: Conn, agent: str, night: str | None = None) -> int:
    row = conn.execute(COUNT, {"agent": agent, "night": night}).fetchone()
    return row[0] if row else 0

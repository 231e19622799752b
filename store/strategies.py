"""Curation strategies: programs under their agent and the digest of their source, with parent, scores and status."""

from typing import Any

from components.errors import RecordError
from components.records import CurationStrategy, Lineage
from components.serial import dump, load
from store.clean import clean_json, clean_text
from store.db import Conn

PUT = """
insert into strategy (id, agent, night, parent_id, stage, status, source, motivating_cases, scores, lineage)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
on conflict (agent, id) do update set status = excluded.status, scores = coalesce(excluded.scores, strategy.scores)
where strategy.source = excluded.source
"""
ROWS = (
    "select id, source, stage, lineage, parent_id, motivating_cases, scores, status from strategy "
)
GET = ROWS + "where agent = %s and id = %s"
RECENT = ROWS + "where agent = %s order by sequence desc limit %s"
ACCEPTED = ROWS + "where agent = %s and status = 'accepted' order by sequence desc limit 1"


def put(conn: Conn, strategy: CurationStrategy, agent: str, night: str) -> None:
    """Write a strategy; one that is there gets its status and, where given, its scores changed.

    Raises:
        RecordError: another source has this id already, or the source cannot be stored.
    """
    if clean_text(strategy.source) != strategy.source:
        raise RecordError(
            f"the source of strategy {strategy.id!r} holds characters that are no text"
        )
    values = (
        strategy.id,
        agent,
        night,
        strategy.parent_id,
        strategy.stage,
        strategy.status,
        strategy.source,
        list(strategy.motivating_cases),
        None if strategy.scores is None else clean_json(strategy.scores).text,
        clean_json(dump(strategy.lineage)).text,
    )
    if conn.execute(PUT, values).rowcount == 0:
        raise RecordError(
            f"strategy {strategy.id!r} is stored with another source: its id must be the digest of its source"
        )


def get(conn: Conn, agent: str, strategy_id: str) -> CurationStrategy | None:
    row = conn.execute(GET, (agent, strategy_id)).fetchone()
    return _strategy(row) if row else None


def recent(conn: Conn, agent: str, limit: int = 30) -> list[CurationStrategy]:
    """The latest strategies of an agent, newest first."""
    return [_strategy(row) for row in conn.execute(RECENT, (agent, limit))]


def accepted(conn: Conn, agent: str) -> CurationStrategy | None:
    """The newest accepted strategy: the one to apply and to improve."""
    row = conn.execute(ACCEPTED, (agent,)).fetchone()
    return _strategy(row) if row else None


def _strategy(row: tuple[Any, ...]) -> CurationStrategy:
    key, source, stage, lineage, parent_id, motivating_cases, scores, status = row
    return CurationStrategy(
        id=key,
        source=source,
        stage=stage,
        lineage=load(Lineage, lineage),
        parent_id=parent_id,
        motivating_cases=tuple(motivating_cases),
        scores=scores,
        status=status,
    )

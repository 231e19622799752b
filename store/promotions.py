"""Promotions and rollbacks: who asked for which, when and why, and what happened.

The review app only asks; a flow moves the alias in the registry and writes here what came of it. One request per agent
is open at a time.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from psycopg.rows import class_row

from components.errors import Conflict, RecordError, StoreError
from store.clean import clean_text
from store.db import Conn

Action = Literal["promote", "rollback"]
Status = Literal["done", "refused"]
"""What became of a request."""

ASK = """
insert into promotion (agent, action, from_version, to_version, actor, reason, requested_at)
values (%s, %s, %s, %s, %s, %s, %s)
on conflict (agent) where status = 'requested' do nothing returning id
"""
OPEN = "select * from promotion where agent = %s and status = 'requested'"
TAKE = f"{OPEN} for update"
RESOLVE = """
update promotion set status = %s, outcome = %s, resolved_at = %s where id = %s and status = 'requested'
"""
RECENT = "select * from promotion where agent = %s order by id desc limit %s"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asks for."""

    agent: str
    action: Action
    from_version: str | None
    """The champion at that time."""
    to_version: str | None
    """The version to promote; None for a rollback to the previous champion."""
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Promotion:
    id: int
    agent: str
    action: Action
    from_version: str | None
    to_version: str | None
    actor: str
    reason: str
    requested_at: datetime
    status: Literal["requested", "done", "refused"]
    resolved_at: datetime | None
    outcome: str | None
    """What happened, in words."""


def ask(conn: Conn, wish: Wish, now: datetime) -> int:
    """Ask for a promotion or rollback; the number of the request.

    Raises:
        Conflict: another request of this agent is open.
        RecordError: nobody asks, or without a reason.
    """
    if not wish.actor.strip() or not wish.reason.strip():
        raise RecordError(f"a {wish.action} needs an actor and a reason, got {wish!r}")
    reason = clean_text(wish.reason)
    values = (
        wish.agent,
        wish.action,
        wish.from_version,
        wish.to_version,
        wish.actor,
        reason,
        now,
    )
    row = conn.execute(ASK, values).fetchone()
    if row is None:
        other = open_request(conn, wish.agent)
        raise Conflict(
            f"{other.actor!r} asked for a {other.action} at {other.requested_at:%Y-%m-%d %H:%M:%S} UTC, which is "
            "still open. Wait for it to be carried out, then decide again."
            if other
            else "another request was open in this moment; decide again"
        )
    return row[0]


def open_request(conn: Conn, agent: str) -> Promotion | None:
    """The request that waits to be carried out."""
    with conn.cursor(row_factory=class_row(Promotion)) as cursor:
        return cursor.execute(OPEN, (agent,)).fetchone()


def take(conn: Conn, agent: str) -> Promotion | None:
    """The request that waits, locked until the transaction ends; another process that asks waits as long."""
    with conn.cursor(row_factory=class_row(Promotion)) as cursor:
        return cursor.execute(TAKE, (agent,)).fetchone()


def resolve(conn: Conn, request: int, status: Status, outcome: str, now: datetime) -> None:
    """Write what came of a request.

    Raises:
        StoreError: there is no such open request.
    """
    values = (status, clean_text(outcome), now, request)
    if conn.execute(RESOLVE, values).rowcount == 0:
        raise StoreError(f"no open promotion request {request!r}")


def recent(conn: Conn, agent: str, limit: int = 50) -> list[Promotion]:
    """The latest requests and what became of them, newest first."""
    with conn.cursor(row_factory=class_row(Promotion)) as cursor:
        return cursor.execute(RECENT, (agent, limit)).fetchall()

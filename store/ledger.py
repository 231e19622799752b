"""The ledger decides what is done: one row per piece of work, keyed by all that its result depends on.

    key = digest(night, stage, plug-in versions, config, input ids)

A second run of the same night finds its rows done and changes nothing; after a crash the next run takes over the rows
left running. `finish` belongs into the transaction that writes the stage's rows, so both happen or neither.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import class_row

from components.errors import Conflict, NightRunning, StoreError
from components.serial import digest
from store.clean import clean_json, clean_text
from store.db import Conn, Database

Status = Literal["running", "done", "failed"]

DONE = "select output from ledger where key = %s and status = 'done'"
BEGIN = """
insert into ledger (key, night, stage, status, attempts, owner, heartbeat_at, started_at)
values (%(key)s, %(night)s, %(stage)s, 'running', 1, %(owner)s, %(now)s, %(now)s)
on conflict (key) do update set status = 'running', attempts = ledger.attempts + 1, owner = excluded.owner,
    heartbeat_at = excluded.heartbeat_at, started_at = excluded.started_at, finished_at = null, seconds = null,
    cause = null
where ledger.status <> 'done'
"""
FINISH = """
update ledger set status = 'done', output = %(output)s, finished_at = %(now)s, heartbeat_at = %(now)s,
    seconds = extract(epoch from %(now)s - started_at), cause = null
where key = %(key)s and status = 'running'
"""
FAIL = """
update ledger set status = 'failed', cause = %(cause)s, finished_at = %(now)s, heartbeat_at = %(now)s,
    seconds = extract(epoch from %(now)s - started_at)
where key = %(key)s and status = 'running'
"""
BEAT = "update ledger set heartbeat_at = %s where key = %s and status = 'running'"
OF_NIGHT = "select * from ledger where night = %s order by started_at, key"

LOCK_SPACE = 0x4E49
TAKE_LOCK = "select pg_try_advisory_lock(%s, hashtext(%s))"
HOLDER = """
select activity.application_name, activity.backend_start
from pg_locks locks join pg_stat_activity activity using (pid)
where locks.locktype = 'advisory' and locks.granted and locks.objsubid = 2
  and locks.database = (select oid from pg_database where datname = current_database())
  and locks.classid::bigint = %s and locks.objid::bigint = (hashtext(%s)::bigint & 4294967295)
"""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    key: str
    night: str
    stage: str
    status: Status
    output: dict[str, Any] | None
    attempts: int
    owner: str
    heartbeat_at: datetime
    started_at: datetime
    finished_at: datetime | None
    seconds: float | None
    """Duration of the last attempt."""
    cause: str | None
    """Why it failed."""


def digest_key(
    night: str,
    stage: str,
    plugin_versions: Mapping[str, str],
    config: Mapping[str, Any],
    input_ids: Sequence[str],
) -> str:
    """The key of a piece of work; the order of the input ids does not matter."""
    return digest([night, stage, dict(plugin_versions), dict(config), sorted(input_ids)])


def done(conn: Conn, key: str) -> dict[str, Any] | None:
    """The output of finished work, or None when it is not finished."""
    row = conn.execute(DONE, (key,)).fetchone()
    return row[0] if row else None


def begin(conn: Conn, key: str, night: str, stage: str, owner: str, now: datetime) -> None:
    """Start an attempt, taking over what a dead or failed one left.

    Raises:
        Conflict: the work is done already.
    """
    values = {"key": key, "night": night, "stage": stage, "owner": owner, "now": now}
    if conn.execute(BEGIN, values).rowcount == 0:
        raise Conflict(f"stage {stage!r} of night {night!r} is done already; use its output")


def finish(conn: Conn, key: str, output: dict[str, Any], now: datetime) -> None:
    """Mark running work as done, with its output: ids and counts, no content.

    Raises:
        StoreError: no such work is running.
    """
    values = {"key": key, "output": clean_json(output).text, "now": now}
    _expect_running(conn.execute(FINISH, values).rowcount, key, "finish")


def fail(conn: Conn, key: str, cause: str, now: datetime) -> None:
    """Mark running work as failed; `begin` may try it again.

    Raises:
        StoreError: no such work is running.
    """
    values = {"key": key, "cause": clean_text(cause), "now": now}
    _expect_running(conn.execute(FAIL, values).rowcount, key, "fail")


def beat(conn: Conn, key: str, now: datetime) -> None:
    """Say that running work is alive."""
    conn.execute(BEAT, (now, key))


def of_night(conn: Conn, night: str) -> list[LedgerRow]:
    """All work of a night, in the order it was started."""
    with conn.cursor(row_factory=class_row(LedgerRow)) as cursor:
        return cursor.execute(OF_NIGHT, (night,)).fetchall()


def _expect_running(num_rows: int, key: str, verb: str) -> None:
    if num_rows == 0:
        raise StoreError(
            f"cannot {verb} work {key[:12]!r}: it is not running. Call `begin` before `{verb}`."
        )


@contextmanager
def night_lock(db: Database, night: str) -> Iterator[None]:
    """Hold the night alone. The server frees it when the holder ends in whatever way, `kill -9` included.

    Raises:
        NightRunning: another process holds it.
    """
    me = f"nightshift night, pid {os.getpid()} on {socket.gethostname()}"[:63]
    with db.apart(me) as conn:
        taken = conn.execute(TAKE_LOCK, (LOCK_SPACE, night)).fetchone()
        if not (taken and taken[0]):
            raise NightRunning(_who_holds(conn, night))
        yield


def _who_holds(conn: Conn, night: str) -> str:
    row = conn.execute(HOLDER, (LOCK_SPACE, night)).fetchone()
    holder = (
        f"{row[0]!r} since {row[1]:%Y-%m-%d %H:%M:%S} UTC" if row else "a process that just ended"
    )
    return (
        f"night {night!r} is being worked on by {holder}. Wait for it to end, or end that process; "
        "then run the same command again: it continues where the other stopped."
    )

"""The ledger decides what is done: one row per piece of work, keyed by all that its result depends on.

    key = digest(agent, night, stage, plug-in versions, config, input ids)

A second run of the same night finds its rows done and changes nothing; after a crash the next run takes over the rows
left running. `finish` belongs into the transaction that writes the stage's rows, so both happen or neither. An attempt
that was taken over is refused there, so a night that lost its lock and the one that has it now never both finish a stage.
"""

import dataclasses
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, NoReturn

import psycopg
from psycopg.rows import class_row

from components.errors import Conflict, NightRunning, StoreError
from components.serial import digest
from store.clean import clean_json, clean_text
from store.db import Conn, Database, translated

Status = Literal["running", "done", "failed"]

DONE = "select output from ledger where key = %s and status = 'done'"
BEGIN = """
insert into ledger (key, agent, night, stage, status, attempts, owner, heartbeat_at, started_at)
values (%(key)s, %(agent)s, %(night)s, %(stage)s, 'running', 1, %(owner)s, %(now)s, %(now)s)
on conflict (key) do update set status = 'running', attempts = ledger.attempts + 1, owner = excluded.owner,
    heartbeat_at = excluded.heartbeat_at, started_at = excluded.started_at, finished_at = null, seconds = null,
    cause = null
where ledger.status <> 'done'
returning attempts
"""
FINISH = """
update ledger set status = 'done', output = %(output)s, finished_at = %(now)s, heartbeat_at = %(now)s,
    seconds = extract(epoch from %(now)s - started_at), cause = null
where key = %(key)s and attempts = %(attempt)s and status = 'running'
"""
FAIL = """
update ledger set status = 'failed', cause = %(cause)s, finished_at = %(now)s, heartbeat_at = %(now)s,
    seconds = extract(epoch from %(now)s - started_at)
where key = %(key)s and attempts = %(attempt)s and status = 'running'
"""
BEAT = "update ledger set heartbeat_at = %s where key = %s and attempts = %s and status = 'running'"
ATTEMPT = "select attempts, owner from ledger where key = %s"
OF_NIGHT = "select * from ledger where agent = %s and night = %s order by started_at, key"

LOCK_SPACE = 0x4E49
TAKE_LOCK = "select pg_try_advisory_lock(%s, hashtext(%s))"
HOLDERS = """
from pg_locks locks join pg_stat_activity activity using (pid)
where locks.locktype = 'advisory' and locks.granted and locks.objsubid = 2
  and locks.database = (select oid from pg_database where datname = current_database())
  and locks.classid::bigint = %s and locks.objid::bigint = (hashtext(%s)::bigint & 4294967295)
"""
HOLDER = f"select activity.application_name, activity.backend_start {HOLDERS}"
END_SESSION = f"select pg_terminate_backend(pid, 5000) {HOLDERS} and activity.application_name = %s"


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work of a night."""

    key: str
    """Its `digest_key`."""
    agent: str
    night: str
    stage: str


class Attempt(NamedTuple):
    """One try at a piece of work. Its number fences it off: once a later attempt began, this one writes nothing more."""

    key: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    key: str
    agent: str
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
    agent: str,
    night: str,
    stage: str,
    plugin_versions: Mapping[str, str],
    config: Mapping[str, Any],
    input_ids: Sequence[str],
) -> str:
    """The key of a piece of work; the order of the input ids does not matter."""
    return digest([agent, night, stage, dict(plugin_versions), dict(config), sorted(input_ids)])


def done(conn: Conn, key: str) -> dict[str, Any] | None:
    """The output of finished work, or None when it is not finished."""
    row = conn.execute(DONE, (key,)).fetchone()
    return row[0] if row else None


def begin(conn: Conn, work: Work, owner: str, now: datetime) -> Attempt:
    """Start an attempt, taking over what a dead or failed one left.

    Raises:
        Conflict: the work is done already.
    """
    values = {**dataclasses.asdict(work), "owner": owner, "now": now}
    row = conn.execute(BEGIN, values).fetchone()
    if row is None:
        raise Conflict(
            f"stage {work.stage!r} of night {work.night!r} is done already; use its output"
        )
    return Attempt(work.key, row[0])


def finish(conn: Conn, attempt: Attempt, output: dict[str, Any], now: datetime) -> None:
    """Mark an attempt as done, with its output: ids and counts, no content.

    Raises:
        NightRunning: another process took the work over; nothing of this attempt may be written.
        StoreError: no such work is running.
    """
    values = {"output": clean_json(output).text, "now": now}
    done = conn.execute(FINISH, {**attempt._asdict(), **values})
    if done.rowcount == 0:
        _refuse(conn, attempt, "finish")


def fail(conn: Conn, attempt: Attempt, cause: str, now: datetime) -> None:
    """Mark an attempt as failed; `begin` may try the work again.

    Raises:
        NightRunning: another process took the work over.
        StoreError: no such work is running.
    """
    done = conn.execute(FAIL, {**attempt._asdict(), "cause": clean_text(cause), "now": now})
    if done.rowcount == 0:
        _refuse(conn, attempt, "fail")


def beat(conn: Conn, attempt: Attempt, now: datetime) -> bool:
    """Say that an attempt is alive; False when it no longer counts, because another took the work over."""
    return conn.execute(BEAT, (now, attempt.key, attempt.attempt)).rowcount > 0


def of_night(conn: Conn, agent: str, night: str) -> list[LedgerRow]:
    """All work of a night, in the order it was started."""
    with conn.cursor(row_factory=class_row(LedgerRow)) as cursor:
        return cursor.execute(OF_NIGHT, (agent, night)).fetchall()


def _refuse(conn: Conn, attempt: Attempt, verb: str) -> NoReturn:
    row = conn.execute(ATTEMPT, (attempt.key,)).fetchone()
    if row is not None and row[0] > attempt.attempt:
        raise NightRunning(
            f"work {attempt.key[:12]!r} was taken over by {row[1]!r} (attempt {row[0]}, this one was "
            f"{attempt.attempt}) while this process had lost its lock. Nothing of this transaction was written; let "
            "the other go on."
        )
    raise StoreError(
        f"cannot {verb} work {attempt.key[:12]!r}: it is not running. Call `begin` before `{verb}`."
    )


class NightLock:
    """The nights of one agent, held alone by a connection of its own.

    The server frees the lock when that connection ends in whatever way, `kill -9` included. A server that restarts ends
    it too: `hold` takes it again before the next piece of work, or says who has it now.
    """

    def __init__(self, db: Database, agent: str) -> None:
        self._db = db
        self._agent = agent
        self._conn: Conn | None = None
        self._closing = ExitStack()

    def hold(self) -> None:
        """Take the lock, or see that it is held still.

        Raises:
            NightRunning: another process holds it.
            Unavailable: the server is away.
        """
        me = f"nightshift night, pid {os.getpid()} on {socket.gethostname()}"[:63]
        with translated(self._db.url):
            if self._conn is not None:
                with suppress(psycopg.OperationalError):
                    self._conn.execute("select 1")
                    return
                self.release()
                self._end_own_session(me)
            conn = self._closing.enter_context(self._db.apart(me))
            taken = conn.execute(TAKE_LOCK, (LOCK_SPACE, self._agent)).fetchone()
            if not (taken and taken[0]):
                raise NightRunning(_who_holds(conn, self._agent))
            self._conn = conn

    def _end_own_session(self, me: str) -> None:
        """Where the network broke, the server may still hold the lock for a session of ours that nobody hears any more."""
        with self._db.connect() as conn:
            conn.execute(END_SESSION, (LOCK_SPACE, self._agent, me))

    def release(self) -> None:
        """Give the lock back."""
        self._conn = None
        self._closing.close()


@contextmanager
def night_lock(db: Database, agent: str) -> Iterator[NightLock]:
    """Hold an agent's nights alone.

    Raises:
        NightRunning: another process holds them.
    """
    lock = NightLock(db, agent)
    try:
        lock.hold()
        yield lock
    finally:
        lock.release()


def _who_holds(conn: Conn, agent: str) -> str:
    row = conn.execute(HOLDER, (LOCK_SPACE, agent)).fetchone()
    holder = (
        f"{row[0]!r} since {row[1]:%Y-%m-%d %H:%M:%S} UTC" if row else "a process that just ended"
    )
    return (
        f"a night of agent {agent!r} is being worked on by {holder}. Wait for it to end, or end that process; "
        "then run the same command again: it continues where the other stopped."
    )

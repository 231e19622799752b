"""Trajectories: one row each, with the token streams of a batch in one file of the file store.

The same content again changes nothing; other content under the same id replaces it and raises the revision. The body
keeps the order of keys, so tool definitions render into the same prompt after reading as before.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
from psycopg import sql
from psycopg.rows import class_row

from components.errors import RecordError, StoreError
from components.records import Trajectory
from components.serial import digest as digest_of
from components.serial import load
from store import _tokens
from store.clean import clean_json
from store.db import Conn, bound, upsert
from store.files import FileStore

Kind = Literal["production", "rollout", "evaluation"]

ALTERED = "altered"
MAX_ID = 512
COLUMNS = (
    "id",
    "agent",
    "kind",
    "night",
    "changed_night",
    "digest",
    "outcome",
    "stop_reason",
    "num_turns",
    "started_at",
    "split",
    "task_id",
    "conversation_id",
    "body",
    "token_file",
    "token_row",
)
REPLACE = """
on conflict (id) do update set agent = excluded.agent, kind = excluded.kind, changed_night = excluded.changed_night,
    revision = trajectory.revision + 1, digest = excluded.digest, outcome = excluded.outcome,
    stop_reason = excluded.stop_reason, num_turns = excluded.num_turns, started_at = excluded.started_at,
    split = excluded.split, task_id = excluded.task_id, conversation_id = excluded.conversation_id,
    body = excluded.body, token_file = excluded.token_file, token_row = excluded.token_row
where trajectory.digest <> excluded.digest
"""
DIGESTS = "select id, digest from trajectory where id = any(%s)"
GET = "select id, body, token_file, token_row from trajectory where id = any(%s)"
SHOWN = "select body from trajectory where id = %s"
IDS_OF_NIGHT = """
select id from trajectory where agent = %(agent)s and night = %(night)s and kind = %(kind)s
union
select id from trajectory
where agent = %(agent)s and changed_night = %(night)s and changed_night <> night and kind = %(kind)s
order by id
"""
LIGHT = """
select id, agent, kind, night, revision, outcome, stop_reason, num_turns, started_at, split, task_id, conversation_id
from trajectory
"""


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """What a list shows of a trajectory."""

    id: str
    agent: str
    kind: Kind
    night: str
    revision: int
    outcome: bool | None
    stop_reason: str | None
    num_turns: int
    started_at: datetime | None
    split: str | None
    task_id: str | None
    conversation_id: str | None


@dataclass(frozen=True, slots=True)
class TrajectoryFilter:
    """Which trajectories to list; None asks nothing."""

    agent: str | None = None
    kind: Kind | None = None
    night: str | None = None
    outcome: bool | None = None
    split: str | None = None
    task_id: str | None = None
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Content:
    stored: Trajectory
    """As it is written: storable text, no token streams."""
    sampled: Trajectory
    """As it was given, with its token streams."""
    body: str
    digest: str


def put(
    conn: Conn, files: FileStore, trajectories: Iterable[Trajectory], night: str, kind: Kind
) -> int:
    """Write trajectories seen in a night; how many were new or changed.

    Raises:
        RecordError: an id is empty or longer than 512 characters, or the content cannot be stored.
        Misaligned: a turn has another number of log-probabilities than completion tokens.
    """
    contents = {item.stored.id: item for item in map(_content, trajectories)}
    known = dict(conn.execute(DIGESTS, (list(contents),)).fetchall())
    changed = [item for key, item in contents.items() if known.get(key) != item.digest]
    with_tokens = [item for item in changed if _tokens.has_tokens(item.sampled)]
    token_file = None
    if with_tokens:
        token_file = files.put_arrays(_tokens.pack([item.sampled for item in with_tokens]))
    token_rows = {item.stored.id: row for row, item in enumerate(with_tokens)}
    rows = [
        (
            *_columns(item, night, kind),
            token_file if key in token_rows else None,
            token_rows.get(key),
        )
        for item in changed
        for key in [item.stored.id]
    ]
    return upsert(conn, "trajectory", COLUMNS, rows, REPLACE)


def _content(trajectory: Trajectory) -> _Content:
    if not 0 < len(trajectory.id) <= MAX_ID:
        raise RecordError(
            f"a trajectory id must have 1 to {MAX_ID} characters, got {len(trajectory.id)}: "
            f"{trajectory.id[:80]!r}"
        )
    stored = _tokens.without_tokens(trajectory)
    body, altered = clean_json(stored)
    if altered:
        stored = load(Trajectory, json.loads(body))
        marks = (*(mark for mark in stored.marks if mark != ALTERED), ALTERED)
        stored = dataclasses.replace(stored, marks=marks)
        body = clean_json(stored).text
    made = hashlib.sha256(body.encode())
    for turn in trajectory.turns:
        for stream in (turn.prompt_ids, turn.completion_ids, turn.logprobs):
            made.update(b"-" if stream is None else b"%d:" % len(stream))
            made.update(np.asarray(stream or (), np.float64).tobytes())
    return _Content(stored, trajectory, body, made.hexdigest())


def _columns(item: _Content, night: str, kind: Kind) -> tuple[Any, ...]:
    stored = item.stored
    return (
        stored.id,
        stored.agent,
        kind,
        night,
        night,
        item.digest,
        stored.outcome,
        stored.stop_reason,
        len(stored.turns),
        stored.started_at,
        stored.split,
        stored.task_id,
        stored.conversation_id,
        item.body,
    )


def get(conn: Conn, files: FileStore, ids: Sequence[str]) -> list[Trajectory]:
    """These trajectories in the order asked for, token streams included.

    Raises:
        StoreError: an id is not there, or a token file is missing or damaged.
    """
    found: dict[str, Trajectory] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    for key, body, token_file, token_row in conn.execute(GET, (list(ids),)):
        found[key] = load(Trajectory, body)
        if token_file is not None:
            places.setdefault(token_file, []).append((key, token_row))
    missing = [key for key in ids if key not in found]
    if missing:
        raise StoreError(
            f"{len(missing)} of {len(ids)} trajectories are not in the store, first {missing[0]!r}"
        )
    for token_file, members in places.items():
        bare = [found[key] for key, _ in members]
        rows = [row for _, row in members]
        whole = _tokens.unpack(bare, rows, files.get_arrays(token_file))
        found.update(zip((key for key, _ in members), whole, strict=True))
    return [found[key] for key in ids]


def shown(conn: Conn, trajectory_id: str) -> Trajectory | None:
    """A trajectory as a page shows it, without its token streams; None when it is not there."""
    row = conn.execute(SHOWN, (trajectory_id,)).fetchone()
    return load(Trajectory, row[0]) if row else None


def ids_of_night(conn: Conn, agent: str, night: str, kind: Kind) -> list[str]:
    """Trajectories of an agent first seen in this night, and those that were changed in it, as a grown conversation is."""
    values = {"agent": agent, "night": night, "kind": kind}
    return [row[0] for row in conn.execute(IDS_OF_NIGHT, values)]


def page(
    conn: Conn, filter: TrajectoryFilter, limit: int = 50, offset: int = 0
) -> list[TrajectoryRow]:
    """Light rows for a list, newest night first."""
    where, values = bound(dataclasses.asdict(filter))
    query = sql.SQL(LIGHT) + where + sql.SQL(" order by night desc, id limit %s offset %s")
    with conn.cursor(row_factory=class_row(TrajectoryRow)) as cursor:
        return cursor.execute(query, [*values, limit, offset]).fetchall()


def count(conn: Conn, filter: TrajectoryFilter) -> int:
    """How many trajectories `page` would list in all."""
    where, values = bound(dataclasses.asdict(filter))
    row = conn.execute(sql.SQL("select count(*) from trajectory ") + where, values).fetchone()
    return row[0] if row else 0


def state_of_night(conn: Conn, agent: str, night: str, kind: Kind) -> str:
    """Digest of the ids and contents that `ids_of_night` names: what a later stage depends on."""
    ids = ids_of_night(conn, agent, night, kind)
    return digest_of(sorted(conn.execute(DIGESTS, (ids,)).fetchall()))

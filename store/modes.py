"""Failure modes: named families of cases with their counts per night. A person's name for one outlives every night."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import numpy as np
from pgvector import Vector

from components.errors import Conflict, RecordError, StoreError
from components.records import FailureMode, Lineage
from components.serial import dump, load
from store.clean import clean_json, clean_text
from store.db import Conn, upsert

COLUMNS = (
    "id",
    "agent",
    "found_name",
    "description",
    "signature",
    "status",
    "lineage",
    "embedding",
)
REPLACE = """
on conflict (id) do update set found_name = excluded.found_name, description = excluded.description,
    signature = excluded.signature, status = excluded.status, lineage = excluded.lineage,
    embedding = excluded.embedding
"""
NIGHT_COLUMNS = ("mode_id", "night", "num_cases")
REPLACE_NIGHT = "on conflict (mode_id, night) do update set num_cases = excluded.num_cases"
ROWS = """
select modes.id, coalesce(given_name, found_name), description, signature, status, lineage, embedding,
    coalesce((select jsonb_object_agg(night, num_cases) from failure_mode_night where mode_id = modes.id), '{}')
from failure_mode modes
"""
OF_AGENT = ROWS + "where agent = %s order by modes.id"
GET = ROWS + "where modes.id = %s"
CURRENT = "select version, found_name, given_name, renamed_by, renamed_at from failure_mode where id = %s for update"
VERSION = "select version from failure_mode where id = %s"
RENAME = """
update failure_mode set given_name = %s, renamed_by = %s, renamed_at = %s, version = version + 1 where id = %s
"""


def put(conn: Conn, modes: Iterable[FailureMode], agent: str) -> None:
    """Write the modes as of a night. A name given by a person stays; nights not mentioned keep their counts."""
    unique = {mode.id: mode for mode in modes}
    rows = [
        (
            mode.id,
            agent,
            clean_text(mode.name),
            clean_text(mode.description),
            clean_text(mode.signature),
            mode.status,
            clean_json(dump(mode.lineage)).text,
            None if mode.embedding is None else np.asarray(mode.embedding, np.float32),
        )
        for mode in unique.values()
    ]
    upsert(conn, "failure_mode", COLUMNS, rows, REPLACE)
    counts = [
        (mode.id, night, num) for mode in unique.values() for night, num in mode.counts.items()
    ]
    upsert(conn, "failure_mode_night", NIGHT_COLUMNS, counts, REPLACE_NIGHT)


def of_agent(conn: Conn, agent: str) -> list[FailureMode]:
    """All modes of an agent, by id. The embedding comes back in single precision."""
    return [_mode(row) for row in conn.execute(OF_AGENT, (agent,))]


def get(conn: Conn, mode_id: str) -> FailureMode | None:
    row = conn.execute(GET, (mode_id,)).fetchone()
    return _mode(row) if row else None


def version(conn: Conn, mode_id: str) -> int:
    """The number of renamings; `rename` asks for it.

    Raises:
        StoreError: there is no such mode.
    """
    row = conn.execute(VERSION, (mode_id,)).fetchone()
    if row is None:
        raise StoreError(f"no failure mode {mode_id!r}")
    return row[0]


def rename(
    conn: Conn, mode_id: str, seen_version: int, name: str, actor: str, now: datetime
) -> None:
    """Give a mode a name of a person's own.

    Raises:
        Conflict: someone renamed it meanwhile.
        StoreError: there is no such mode.
        RecordError: the name is blank.
    """
    if not name.strip():
        raise RecordError(f"a failure mode needs a name, got {name!r}")
    row = conn.execute(CURRENT, (mode_id,)).fetchone()
    if row is None:
        raise StoreError(f"no failure mode {mode_id!r}")
    if row[0] != seen_version:
        raise Conflict(
            f"{row[3]!r} renamed mode {row[1]!r} to {row[2]!r} meanwhile, at {row[4]:%Y-%m-%d %H:%M:%S} UTC. "
            "Read it again and decide again."
        )
    conn.execute(RENAME, (clean_text(name.strip()), actor, now, mode_id))


def _mode(row: tuple[Any, ...]) -> FailureMode:
    key, name, description, signature, status, lineage, embedding, counts = row
    values = embedding.to_list() if isinstance(embedding, Vector) else embedding
    return FailureMode(
        id=key,
        name=name,
        description=description,
        signature=signature,
        status=status,
        counts=counts,
        lineage=load(Lineage, lineage),
        embedding=None if values is None else tuple(values),
    )

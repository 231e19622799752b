"""The memory bank: entry versions that never change, in numbered revisions that only go forward.

A bank is a line of revisions per scope. Revision r holds the entry versions that are live at r; `commit` makes the
next revision, `rollback` makes one that holds what an earlier one held. Nothing is ever deleted.

A use of an entry is noted under the newest revision. `recall` counts uses noted before its revision, so what a revision
recalls never changes and a night that is repeated sees what it saw; the other reads count all uses so far.

Recall fuses two rankings, by vector and by words, with reciprocal rank fusion:

    score(entry) = sum over rankings of 1 / (60 + rank)          rank counts from 1, absent = no term

Source: Cormack, Clarke, Buettcher, SIGIR 2009 (k = 60).
Our choice: the 100 best of each ranking take part; words are joined by "or", because a question rarely shares every
word with a lesson. The vector ranking is an exact scan, about 12 ms for 10,000 entries on one core; no answer is
lost behind a filter as with an approximate index.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from psycopg.rows import class_row

from components.errors import Conflict, RecordError, StoreError
from components.records import Lineage, MemoryEntry
from components.serial import digest, dump, load
from store.clean import clean_json, clean_text
from store.db import Conn, insert_new

FUSION_K = 60
NUM_RANKED = 100

ENTRY_COLUMNS = (
    "id",
    "version",
    "scope",
    "digest",
    "kind",
    "cue",
    "content",
    "provenance",
    "lineage",
    "uses",
    "successes",
)
LOCK = "select pg_advisory_xact_lock(hashtext('memory'), hashtext(%s))"
HEAD = "select coalesce(max(revision), 0) from memory_revision where scope = %s"
BY_KEY = "select revision from memory_revision where scope = %s and key = %s"
ADD_REVISION = """
insert into memory_revision (scope, revision, parent, key, restores, actor, reason, made_at)
values (%s, %s, %s, %s, %s, %s, %s, %s)
"""
REVISIONS = "select * from memory_revision where scope = %s order by revision desc limit %s"
DIGESTS = "select id, version, digest from memory_entry where id = any(%s)"
LIVE_HEAD = "select entry_id, version from memory_live where scope = %s and until is null"
LIVE_AT = """
select entry_id, version from memory_live where scope = %(scope)s and since <= %(revision)s
    and (until is null or until > %(revision)s)
"""
END = "update memory_live set until = %s where scope = %s and until is null and entry_id = any(%s)"
LIVE_COLUMNS = ("scope", "entry_id", "version", "since")
FIELDS = """
entries.id, entries.version, entries.kind, entries.cue, entries.content, entries.provenance, entries.scope,
entries.lineage, entries.uses + coalesce(used.num, 0), entries.successes + coalesce(used.num_good, 0)
"""
USED = """
left join (
    select entry_id, version, count(*) num, count(*) filter (where succeeded) num_good
    from memory_use group by 1, 2
) used on used.entry_id = entries.id and used.version = entries.version
"""
USED_BEFORE = USED.replace("group by", "where revision < %(revision)s group by")
BANK = f"""
select {FIELDS} from ({LIVE_AT}) live
join memory_entry entries on entries.id = live.entry_id and entries.version = live.version {USED}
order by entries.id
"""
PAGE = BANK + "limit %(limit)s offset %(offset)s"
SIZE = f"select count(*) from ({LIVE_AT}) live"
DIFF = f"""
with before as ({LIVE_AT.replace("%(revision)s", "%(before)s")}), after as ({LIVE_AT.replace("%(revision)s", "%(after)s")})
select entry_id, before.version, after.version from before full join after using (entry_id)
where before.version is distinct from after.version order by entry_id limit %(limit)s
"""
VERSIONS = f"""
select {FIELDS} from unnest(%s::text[], %s::int[]) asked (id, version)
join memory_entry entries using (id, version) {USED}
"""
RECALL = f"""
with asked as (
    select replace(plainto_tsquery('english', %(text)s)::text, '&', '|')::tsquery words
), by_vector as (
    select id, version, row_number() over (order by distance, id) place from (
        select id, version, embedding <=> %(vector)s distance
        from (select entry_id id, version from ({LIVE_AT}) held) live join memory_vector using (id, version)
        order by 3, 1 limit %(num_ranked)s
    ) nearest
), by_words as (
    select id, version, row_number() over (order by fit desc, id) place from (
        select id, version, ts_rank_cd(entries.words, asked.words) fit
        from asked join memory_entry entries on entries.words @@ asked.words
        join (select entry_id id, version from ({LIVE_AT}) held) live using (id, version)
        order by 3 desc, 1 limit %(num_ranked)s
    ) fittest
), fused as (
    select id, version, coalesce(1.0 / (%(fusion_k)s + by_vector.place), 0)
        + coalesce(1.0 / (%(fusion_k)s + by_words.place), 0) score,
        by_vector.place vector_rank, by_words.place word_rank
    from by_vector full join by_words using (id, version) order by score desc, id limit %(k)s
)
select fused.score::float8, fused.vector_rank, fused.word_rank, {FIELDS}
from fused join memory_entry entries using (id, version) {USED_BEFORE}
order by fused.score desc, fused.id
"""


class Change(NamedTuple):
    """What a new revision does to the bank."""

    entries: Sequence[MemoryEntry]
    """New entries, and new versions of entries."""
    vectors: Sequence[Sequence[float]]
    """Embedding of each, 384 numbers."""
    removed: Sequence[str] = ()
    """Ids of entries that the next revision no longer holds."""
    actor: str = "night"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revision:
    scope: str
    revision: int
    parent: int | None
    key: str
    """What it was made from; the same key again makes no second revision."""
    restores: int | None
    """The revision that a rollback went back to."""
    actor: str
    reason: str
    made_at: datetime


class Changed(NamedTuple):
    """An entry that differs between two revisions; None where a revision does not hold it."""

    before: MemoryEntry | None
    after: MemoryEntry | None


class Recalled(NamedTuple):
    entry: MemoryEntry
    score: float
    vector_rank: int | None
    word_rank: int | None


def head(conn: Conn, scope: str) -> int:
    """The newest revision of a bank; 0 for an empty one."""
    row = conn.execute(HEAD, (scope,)).fetchone()
    return row[0] if row else 0


def commit(conn: Conn, scope: str, change: Change, key: str, parent: int, now: datetime) -> int:
    """Make the revision that follows `parent`; its number.

    The same key again returns the revision it made; a change that changes nothing returns `parent`.

    Raises:
        Conflict: the bank moved on since `parent`, or a version is stored with other content.
        RecordError: an entry belongs to another scope, or the vectors do not fit the entries.
    """
    conn.execute(LOCK, (scope,))
    made = conn.execute(BY_KEY, (scope, key)).fetchone()
    if made:
        return made[0]
    if head(conn, scope) != parent:
        raise Conflict(
            f"the memory of {scope!r} is at revision {head(conn, scope)}, not {parent}: read it and try again"
        )
    _put_entries(conn, scope, change)
    live = dict(conn.execute(LIVE_HEAD, (scope,)).fetchall())
    wanted = live | {entry.id: entry.version for entry in change.entries}
    for gone in change.removed:
        wanted.pop(gone, None)
    if wanted == live:
        return parent
    row = Revision(
        scope, parent + 1, parent or None, key, None, change.actor, clean_text(change.reason), now
    )
    _add(conn, row, live, wanted)
    return row.revision


def rollback(conn: Conn, scope: str, revision: int, actor: str, reason: str, now: datetime) -> int:
    """Make a revision that holds what an earlier one held; its number.

    Raises:
        StoreError: there is no such revision.
    """
    conn.execute(LOCK, (scope,))
    newest = head(conn, scope)
    if not 0 <= revision < newest:
        raise StoreError(
            f"cannot roll the memory of {scope!r} back to revision {revision}: expected 0 to {newest - 1}"
        )
    live = dict(conn.execute(LIVE_HEAD, (scope,)).fetchall())
    values = {"scope": scope, "revision": revision}
    wanted = dict(conn.execute(LIVE_AT, values).fetchall())
    key = f"rollback {newest + 1}"
    row = Revision(scope, newest + 1, newest, key, revision, actor, clean_text(reason), now)
    _add(conn, row, live, wanted)
    return row.revision


def bank(conn: Conn, scope: str, revision: int | None = None) -> list[MemoryEntry]:
    """The entries of a revision (the newest when None), by id, with their uses counted up to now."""
    at = head(conn, scope) if revision is None else revision
    return [_entry(row) for row in conn.execute(BANK, {"scope": scope, "revision": at})]


def page(
    conn: Conn, scope: str, revision: int, limit: int = 50, offset: int = 0
) -> list[MemoryEntry]:
    """Entries of a revision, by id."""
    values = {"scope": scope, "revision": revision, "limit": limit, "offset": offset}
    return [_entry(row) for row in conn.execute(PAGE, values)]


def size(conn: Conn, scope: str, revision: int) -> int:
    """How many entries a revision holds."""
    row = conn.execute(SIZE, {"scope": scope, "revision": revision}).fetchone()
    return row[0] if row else 0


def diff(conn: Conn, scope: str, before: int, after: int, limit: int = 50) -> list[Changed]:
    """What differs between two revisions of a bank, by id."""
    values = {"scope": scope, "before": before, "after": after, "limit": limit}
    pairs = conn.execute(DIFF, values).fetchall()
    wanted = [(key, at) for key, *both in pairs for at in both if at is not None]
    keys, versions = [key for key, _ in wanted], [at for _, at in wanted]
    found = {(e.id, e.version): e for e in map(_entry, conn.execute(VERSIONS, (keys, versions)))}
    return [Changed(found.get((key, old)), found.get((key, new))) for key, old, new in pairs]


def revisions(conn: Conn, scope: str, limit: int = 50) -> list[Revision]:
    """The latest revisions, newest first."""
    with conn.cursor(row_factory=class_row(Revision)) as cursor:
        return cursor.execute(REVISIONS, (scope, limit)).fetchall()


@dataclass(frozen=True, slots=True)
class Question:
    """What to look up."""

    text: str
    vector: Sequence[float]
    """Embedding of the text."""
    k: int = 3
    """At most this many entries."""


def recall(
    conn: Conn, scope: str, question: Question, revision: int | None = None
) -> list[Recalled]:
    """The best entries of a revision (the newest when None) for a question, best first; uses as that revision knew them."""
    values = {
        "scope": scope,
        "revision": head(conn, scope) if revision is None else revision,
        "text": clean_text(question.text),
        "vector": np.asarray(question.vector, np.float32),
        "k": question.k,
        "fusion_k": FUSION_K,
        "num_ranked": NUM_RANKED,
    }
    return [Recalled(_entry(row[3:]), *row[:3]) for row in conn.execute(RECALL, values)]


def note_uses(conn: Conn, scope: str, uses: Iterable[tuple[str, str, int, bool]]) -> None:
    """Note which entries finished trajectories had in their prompts; the same again counts once.

    `uses`: trajectory, entry, version of the entry, whether the trajectory succeeded.
    """
    newest = head(conn, scope)
    rows = [(*use, newest) for use in uses]
    columns = ("trajectory_id", "entry_id", "version", "succeeded", "revision")
    insert_new(conn, "memory_use", columns, rows)


def _put_entries(conn: Conn, scope: str, change: Change) -> None:
    if len(change.vectors) != len(change.entries):
        raise RecordError(
            f"memory entries need one vector each: got {len(change.vectors)} for {len(change.entries)}"
        )
    known = {
        (key, at): made
        for key, at, made in conn.execute(DIGESTS, ([e.id for e in change.entries],))
    }
    rows: list[tuple[Any, ...]] = []
    for entry in change.entries:
        if entry.scope != scope:
            raise RecordError(
                f"memory entry {entry.id!r} belongs to {entry.scope!r}, not {scope!r}"
            )
        made = digest([entry.kind, clean_text(entry.cue), clean_text(entry.content), scope])
        if known.get((entry.id, entry.version), made) != made:
            raise Conflict(
                f"version {entry.version} of memory entry {entry.id!r} is stored with other content; "
                f"a change needs version {entry.version + 1} or later"
            )
        rows.append(_row(entry, made))
    insert_new(conn, "memory_entry", ENTRY_COLUMNS, rows)
    vectors = [
        (entry.id, entry.version, np.asarray(vector, np.float32))
        for entry, vector in zip(change.entries, change.vectors, strict=True)
    ]
    insert_new(conn, "memory_vector", ("id", "version", "embedding"), vectors)


def _row(entry: MemoryEntry, made: str) -> tuple[Any, ...]:
    return (
        entry.id,
        entry.version,
        entry.scope,
        made,
        entry.kind,
        clean_text(entry.cue),
        clean_text(entry.content),
        list(entry.provenance),
        clean_json(dump(entry.lineage)).text,
        entry.uses,
        entry.successes,
    )


def _add(conn: Conn, row: Revision, live: dict[str, int], wanted: dict[str, int]) -> None:
    """Add a revision that holds the wanted versions."""
    conn.execute(ADD_REVISION, dataclasses.astuple(row))
    ended = [key for key, version in live.items() if wanted.get(key) != version]
    begun = [
        (row.scope, key, version, row.revision)
        for key, version in wanted.items()
        if live.get(key) != version
    ]
    conn.execute(END, (row.revision, row.scope, ended))
    insert_new(conn, "memory_live", LIVE_COLUMNS, begun)


def _entry(row: Sequence[Any]) -> MemoryEntry:
    key, version, kind, cue, content, provenance, scope, lineage, uses, successes = row
    return MemoryEntry(
        id=key,
        version=version,
        kind=kind,
        cue=cue,
        content=content,
        provenance=tuple(provenance),
        scope=scope,
        lineage=load(Lineage, lineage),
        uses=uses,
        successes=successes,
    )

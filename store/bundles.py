"""Bundles: what a strategy kept and what it dropped, item by item, so both can be paged."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from components.errors import StoreError
from components.records import Bundle, Dropped, Example, Lineage, RolloutRequest
from components.serial import dump, load
from store.clean import clean_json, clean_text
from store.db import Conn, insert_new

PUT = """
insert into bundle (id, agent, night, strategy_id, rl, memory_trajectories, lineage, num_kept, num_dropped)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s) on conflict (id) do nothing
"""
ITEM_COLUMNS = (
    "bundle_id",
    "kept",
    "position",
    "kind",
    "trajectory_id",
    "reason",
    "example",
)
GET = "select id, strategy_id, rl, memory_trajectories, lineage from bundle where id = %s"
ITEMS = """
select kept, trajectory_id, reason, example from bundle_item where bundle_id = %s order by kept, position
"""
PAGE = """
select position, kept, kind, trajectory_id, reason, example from bundle_item
where bundle_id = %(bundle_id)s and kept = %(kept)s and (%(reason)s::text is null or reason = %(reason)s)
order by position limit %(limit)s offset %(offset)s
"""
RECENT = """
select id, night, strategy_id, num_kept, num_dropped from bundle where agent = %s order by night desc, id limit %s
"""
REASONS = """
select reason, count(*) from bundle_item where bundle_id = %s and not kept group by 1 order by 2 desc, 1
"""
FATES = """
select trajectory_id, count(*) filter (where kept), min(reason) filter (where not kept),
    max((example ->> 'weight')::float8) filter (where kept)
from bundle_item where bundle_id = %s and trajectory_id = any(%s) group by 1
"""
USING = "select distinct bundle_id from bundle_item where trajectory_id = %s and kept order by 1"


class BundleRow(NamedTuple):
    id: str
    night: str
    strategy_id: str
    num_kept: int
    num_dropped: int


class BundleItem(NamedTuple):
    """One kept example, or one dropped trajectory with the reason."""

    position: int
    kept: bool
    kind: str | None
    trajectory_id: str
    reason: str | None
    example: Example | None


class Fate(NamedTuple):
    """What a strategy made of one trajectory."""

    num_kept: int
    """Examples from it."""
    reason: str | None
    """Why it was dropped, or None when it was not."""
    weight: float | None = None
    """Of its heaviest example."""


def put(conn: Conn, bundle: Bundle, agent: str, night: str) -> bool:
    """Write a bundle with all its items; whether it was new."""
    values = (
        bundle.id,
        agent,
        night,
        bundle.strategy_id,
        clean_json([dump(request) for request in bundle.rl]).text,
        list(bundle.memory_trajectories),
        clean_json(dump(bundle.lineage)).text,
        len(bundle.examples),
        len(bundle.dropped),
    )
    if conn.execute(PUT, values).rowcount == 0:
        return False
    insert_new(conn, "bundle_item", ITEM_COLUMNS, list(_item_rows(bundle)))
    return True


def _item_rows(bundle: Bundle) -> Iterator[tuple[Any, ...]]:
    for position, example in enumerate(bundle.examples):
        text = clean_json(dump(example)).text
        yield (bundle.id, True, position, example.kind, example.trajectory_id, None, text)
    for position, item in enumerate(bundle.dropped):
        yield (bundle.id, False, position, None, item.trajectory_id, clean_text(item.reason), None)


def get(conn: Conn, bundle_id: str) -> Bundle:
    """The whole bundle.

    Raises:
        StoreError: there is no such bundle.
    """
    row = conn.execute(GET, (bundle_id,)).fetchone()
    if row is None:
        raise StoreError(f"no bundle {bundle_id!r}")
    key, strategy_id, rl, memory_trajectories, lineage = row
    items = conn.execute(ITEMS, (bundle_id,)).fetchall()
    return Bundle(
        id=key,
        strategy_id=strategy_id,
        examples=tuple(load(Example, example) for kept, _, _, example in items if kept),
        rl=tuple(load(RolloutRequest, request) for request in rl),
        memory_trajectories=tuple(memory_trajectories),
        dropped=tuple(Dropped(of, reason) for kept, of, reason, _ in items if not kept),
        lineage=load(Lineage, lineage),
    )


def page(
    conn: Conn,
    bundle_id: str,
    kept: bool,
    limit: int = 50,
    offset: int = 0,
    reason: str | None = None,
) -> list[BundleItem]:
    """What was kept, or what was dropped (for this reason, unless None), in the strategy's order."""
    values = {"bundle_id": bundle_id, "kept": kept, "reason": reason}
    rows = conn.execute(PAGE, {**values, "limit": limit, "offset": offset})
    return [
        BundleItem(*row[:-1], example=None if row[-1] is None else load(Example, row[-1]))
        for row in rows
    ]


def recent(conn: Conn, agent: str, limit: int = 30) -> list[BundleRow]:
    """The latest bundles of an agent with their sizes, newest night first."""
    return [BundleRow(*row) for row in conn.execute(RECENT, (agent, limit))]


def reasons(conn: Conn, bundle_id: str) -> dict[str, int]:
    """How many trajectories were dropped for each reason, most frequent first."""
    return dict(conn.execute(REASONS, (bundle_id,)).fetchall())


def fates(conn: Conn, bundle_id: str, trajectory_ids: Sequence[str]) -> dict[str, Fate]:
    """What became of these trajectories in a bundle; one that the strategy never saw is not there."""
    rows = conn.execute(FATES, (bundle_id, list(trajectory_ids)))
    return {key: Fate(*fate) for key, *fate in rows}


def using(conn: Conn, trajectory_id: str) -> list[str]:
    """Bundles that hold an example from this trajectory."""
    return [row[0] for row in conn.execute(USING, (trajectory_id,))]

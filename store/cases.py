"""Failure cases: as the miner found them, with what people decided about them on top.

`found` holds the miner's case and may be replaced by a later run; `decided` holds people's decisions and always wins.
Every function returns the case with the decisions applied.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from psycopg import sql

from components.errors import StoreError
from components.records import FailureCase, Fault, Review
from components.serial import dump, load
from store.clean import clean_json
from store.db import Conn, upsert

COLUMNS = ("id", "agent", "night", "trajectory_id", "found")
REPLACE = """
on conflict (id) do update set found = excluded.found, trajectory_id = excluded.trajectory_id
where failure_case.found <> excluded.found
"""
ROWS = "select found, decided, version, night, agent from failure_case "
GET = ROWS + "where id = any(%s)"
OF_NIGHT = ROWS + "where agent = %s and night = %s order by id"
OF_MODE = ROWS + "where mode_id = %s order by night desc, id limit %s"
OF_TRAJECTORY = ROWS + "where trajectory_id = %s order by night desc, id"
AS_OF = """
select cases.found, coalesce(reviews.decided, '{}'::jsonb), cases.version, cases.night, cases.agent
from failure_case cases
left join (
    select distinct on (case_id) case_id, decided from case_review where decided_at <= %(cutoff)s
    order by case_id, version desc
) reviews on reviews.case_id = cases.id
where cases.agent = %(agent)s and (%(night)s::text is null or cases.night = %(night)s)
order by cases.night, cases.id
"""
Attribute = Literal["fault", "kind", "mode_id", "night", "verdict"]


class StoredCase(NamedTuple):
    case: FailureCase
    """With people's decisions applied."""
    version: int
    """Number of decisions; `reviews.decide` asks for it."""
    night: str
    agent: str


@dataclass(frozen=True, slots=True)
class CaseFilter:
    """Which cases to list; None asks nothing."""

    agent: str | None = None
    night: str | None = None
    fault: Fault | None = None
    kind: str | None = None
    mode_id: str | None = None
    verdict: Literal["open", "confirmed", "dismissed"] | None = None


def put(conn: Conn, cases: Iterable[FailureCase], agent: str, night: str) -> int:
    """Write what a miner or mode finder found; how many cases were new or changed. Decisions stay."""
    bare = {case.id: dataclasses.replace(case, review=None) for case in cases}
    rows = [
        (case.id, agent, night, case.trajectory_id, clean_json(dump(case)).text)
        for case in bare.values()
    ]
    return upsert(conn, "failure_case", COLUMNS, rows, REPLACE)


def get(conn: Conn, ids: Sequence[str]) -> list[StoredCase]:
    """These cases in the order asked for.

    Raises:
        StoreError: an id is not there.
    """
    found = {item.case.id: item for item in map(_stored, conn.execute(GET, (list(ids),)))}
    missing = [key for key in ids if key not in found]
    if missing:
        raise StoreError(
            f"{len(missing)} of {len(ids)} failure cases are not in the store, first {missing[0]!r}"
        )
    return [found[key] for key in ids]


def of_night(conn: Conn, agent: str, night: str) -> list[StoredCase]:
    return [_stored(row) for row in conn.execute(OF_NIGHT, (agent, night))]


def of_mode(conn: Conn, mode_id: str, limit: int = 50) -> list[StoredCase]:
    """The latest cases of a mode."""
    return [_stored(row) for row in conn.execute(OF_MODE, (mode_id, limit))]


def of_trajectory(conn: Conn, trajectory_id: str) -> list[StoredCase]:
    return [_stored(row) for row in conn.execute(OF_TRAJECTORY, (trajectory_id,))]


def as_of(conn: Conn, agent: str, cutoff: datetime, night: str | None = None) -> list[FailureCase]:
    """Cases with people's decisions as they stood at the cut-off; later ones belong to the next night."""
    values = {"agent": agent, "cutoff": cutoff, "night": night}
    return [_stored(row).case for row in conn.execute(AS_OF, values)]


def page(conn: Conn, filter: CaseFilter, limit: int = 50, offset: int = 0) -> list[StoredCase]:
    """Cases for the review queue, newest night first."""
    where, values = _where(filter)
    query = sql.SQL(ROWS) + where + sql.SQL(" order by night desc, id limit %s offset %s")
    return [_stored(row) for row in conn.execute(query, [*values, limit, offset])]


def count(conn: Conn, filter: CaseFilter) -> int:
    """How many cases `page` would list in all."""
    where, values = _where(filter)
    row = conn.execute(sql.SQL("select count(*) from failure_case ") + where, values).fetchone()
    return row[0] if row else 0


def counts_by(conn: Conn, attribute: Attribute, filter: CaseFilter) -> dict[str | None, int]:
    """Number of cases per value of an attribute, most frequent first."""
    where, values = _where(filter)
    query = sql.SQL("select {0}, count(*) from failure_case {1} group by 1 order by 2 desc, 1")
    return dict(conn.execute(query.format(sql.Identifier(attribute), where), values).fetchall())


def _where(filter: CaseFilter) -> tuple[sql.Composable, list[Any]]:
    tests: list[sql.Composable] = []
    values: list[Any] = []
    for column, value in dataclasses.asdict(filter).items():
        if value is None:
            continue
        if column == "verdict" and value == "open":
            tests.append(sql.SQL("verdict is null"))
        else:
            tests.append(sql.SQL("{} = %s").format(sql.Identifier(column)))
            values.append(value)
    clause = sql.SQL("where ") + sql.SQL(" and ").join(tests) if tests else sql.SQL("")
    return clause, values


def _stored(row: tuple[Any, ...]) -> StoredCase:
    found, decided, version, night, agent = row
    case = load(FailureCase, found)
    changed = {key: decided[key] for key in ("summary", "mode_id", "fault") if key in decided}
    review = None
    if "verdict" in decided:
        review = load(
            Review, {key: decided[key] for key in ("verdict", "actor", "decided_at", "reason")}
        )
    return StoredCase(dataclasses.replace(case, review=review, **changed), version, night, agent)

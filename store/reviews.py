"""Reviews: what people decide about failure cases, kept for ever, one row per decision.

A decision names the version of the case that the person saw; when someone else decided meanwhile it is refused, and
the message says who. Decisions take effect in the next night: `cases.as_of` reads them as they stood at its cut-off.
"""

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from components.errors import Conflict, RecordError, StoreError
from components.records import Fault, ReviewVerdict
from store.clean import clean_text
from store.db import Conn

CURRENT = "select version, decided from failure_case where id = %s for update"
LAST = "select actor, decided_at, change from case_review where case_id = %s order by version desc limit 1"
REMEMBER = """
insert into case_review (case_id, version, actor, decided_at, change, decided) values (%s, %s, %s, %s, %s, %s)
"""
APPLY = "update failure_case set decided = %s, version = %s where id = %s"
HISTORY = """
select version, decided_at, change from case_review where case_id = %s order by version
"""
BETWEEN = """
select cases.id case_id, cases.trajectory_id, coalesce(last.decided ->> 'summary', cases.found ->> 'summary') summary,
    last.decided ->> 'verdict' verdict, last.decided ->> 'actor' actor, last.decided ->> 'reason' reason, last.decided_at
from (
    select distinct on (case_id) case_id, decided, decided_at from case_review
    where decided_at > %(since)s and decided_at <= %(until)s order by case_id, version desc
) last join failure_case cases on cases.id = last.case_id
where cases.agent = %(agent)s and last.decided ->> 'verdict' is not null
order by last.decided_at desc, cases.id limit %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One decision about one case; None leaves a field as it is."""

    actor: str
    reason: str = ""
    verdict: ReviewVerdict | None = None
    """`confirmed` keeps the case for training, `dismissed` leaves it out."""
    summary: str | None = None
    mode_id: str | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class PastChange:
    version: int
    """Version of the case after this decision."""
    decided_at: datetime
    change: Change


@dataclass(frozen=True, slots=True)
class Decided:
    """A case with the verdict that stood at the end of a span of time."""

    case_id: str
    trajectory_id: str
    summary: str
    verdict: ReviewVerdict
    actor: str
    reason: str
    decided_at: datetime


def decide(conn: Conn, case_id: str, version: int, change: Change, now: datetime) -> int:
    """Apply a decision to the case that was seen at this version; the new version.

    Raises:
        Conflict: someone decided on the case meanwhile.
        StoreError: there is no such case.
        RecordError: the decision changes nothing or names nobody.
    """
    wanted = {
        key: clean_text(value)
        for key, value in dataclasses.asdict(change).items()
        if value is not None and key not in ("actor", "reason")
    }
    if not wanted or not change.actor.strip():
        raise RecordError(f"a decision needs an actor and at least one change, got {change!r}")
    row = conn.execute(CURRENT, (case_id,)).fetchone()
    if row is None:
        raise StoreError(f"no failure case {case_id!r}")
    if row[0] != version:
        raise Conflict(_who_decided(conn, case_id))
    said: dict[str, Any] = {"actor": change.actor, "reason": clean_text(change.reason)}
    decided = row[1] | wanted
    if change.verdict is not None:
        decided |= said | {"decided_at": now.isoformat()}
    values = (case_id, version + 1, change.actor, now, Jsonb(wanted | said), Jsonb(decided))
    conn.execute(REMEMBER, values)
    conn.execute(APPLY, (Jsonb(decided), version + 1, case_id))
    return version + 1


def history(conn: Conn, case_id: str) -> list[PastChange]:
    """All decisions about a case, oldest first."""
    return [
        PastChange(version, decided_at, Change(**change))
        for version, decided_at, change in conn.execute(HISTORY, (case_id,))
    ]


def between(
    conn: Conn, agent: str, since: datetime, until: datetime, limit: int = 500
) -> list[Decided]:
    """Cases decided after `since` and up to `until`, with the verdict at `until`, latest first."""
    values = {"agent": agent, "since": since, "until": until, "limit": limit}
    with conn.cursor(row_factory=class_row(Decided)) as cursor:
        return cursor.execute(BETWEEN, values).fetchall()


def _who_decided(conn: Conn, case_id: str) -> str:
    row = conn.execute(LAST, (case_id,)).fetchone()
    if row is None:
        return f"case {case_id!r} has no decision yet: read it again and decide again"
    actor, decided_at, change = row
    made = ", ".join(
        f"{key} {value!r}"
        for key, value in sorted(change.items())
        if key not in ("actor", "reason")
    )
    return (
        f"{actor!r} decided on case {case_id!r} meanwhile, at {decided_at:%Y-%m-%d %H:%M:%S} UTC: {made}. "
        "Read it again and decide again."
    )

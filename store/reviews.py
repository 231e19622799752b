"""Reviews: what people decide about failure cases, kept for ever, one row per decision.

A decision names the version of the case that the person saw; when someone else decided meanwhile it is refused, and
the message says who. Decisions take effect in the next night: `cases.as_of` reads them as they stood at its cut-off.
"""

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any

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

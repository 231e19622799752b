"""Pages stay quick and small with many rows: they are paged in SQL, never read whole."""

import time
from collections.abc import Callable

import pytest

from components.serial import dump
from store import cases
from store.cases import CaseFilter
from store.clean import clean_json
from store.db import copy_rows
from tests.ui.conftest import Desk
from tests.ui.desk_logs import AGENT
from tests.ui.test_hostile import bodies_of, markdown_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

NUM = 100_000
SERVER_S, BYTES = 0.3, 200_000
ANALYZE = ("analyze failure_case", "analyze trajectory", "analyze bundle_item")
WRITE_ITEMS = """
insert into bundle_item (bundle_id, kept, position, kind, trajectory_id, reason, example)
select items.bundle_id, items.kept, 1000 + serial, items.kind, items.trajectory_id, items.reason, items.example
from (
    select distinct on (bundle_id, kept) * from bundle_item
    where bundle_id = (select id from bundle order by night desc limit 1) order by bundle_id, kept, position
) items, generate_series(1, %s) serial
"""


@pytest.fixture
def big_desk(desk: Desk) -> Desk:
    """The fortnight with 100,000 cases and trajectories more, and a bundle of 40,000 items."""
    with desk.db.connect() as conn:
        (seen,) = cases.page(conn, CaseFilter(agent=AGENT), 1)
        found = clean_json(dump(seen.case)).text.replace(seen.case.id, "c-ID")
        (body,) = conn.execute(
            "select body::text from trajectory where id = %s", (seen.case.trajectory_id,)
        ).fetchone() or ("",)
        copy_rows(
            conn,
            "failure_case",
            ("id", "agent", "night", "trajectory_id", "found"),
            (
                (
                    f"c-{place:06d}",
                    AGENT,
                    f"2026-03-{1 + place % 14:02d}",
                    f"t-{place:06d}",
                    found.replace("c-ID", f"c-{place:06d}"),
                )
                for place in range(NUM)
            ),
        )
        copy_rows(
            conn,
            "trajectory",
            ("id", "agent", "kind", "night", "changed_night", "digest", "num_turns", "body", "outcome", "split"),
            (
                (f"t-{place:06d}", AGENT, "production", night, night, "d", 3, body, place % 3 > 0, "train")
                for place in range(NUM)
                for night in [f"2026-03-{1 + place % 14:02d}"]
            ),
        )  # fmt: skip
        conn.execute(WRITE_ITEMS, (NUM // 5,))
        conn.execute(
            "update bundle set num_kept = %s where night = (select max(night) from bundle)",
            (NUM // 5,),
        )
        for statement in ANALYZE:
            conn.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return desk


def test_every_page_is_quick_and_small(big_desk: Desk) -> None:
    """The third run of a page counts: imports and the first connection are behind it."""
    slow: dict[str, float] = {}
    for page in ("overview", "failures", "trajectories", "data", "memory", "promotion"):
        app = big_desk.open(page)
        assert not app.exception
        took = min(timed(app.run) for _ in range(3))
        size = sum(len(text.encode()) for text in [*bodies_of(app), *markdown_of(app)])
        print(f"{page}: {took:.3f} s, {size:,} bytes")
        assert size < BYTES, page
        if took > SERVER_S:
            slow[page] = took
    assert not slow


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started

"""The ledger and the night's lock."""

import subprocess
import sys
import textwrap
import time
from datetime import datetime, timedelta

import pytest

from components.errors import Conflict, NightRunning, StoreError
from store import ledger
from store.db import Conn, Database

pytestmark = pytest.mark.postgres


def test_key_depends_on_everything_but_the_order_of_ids() -> None:
    key = ledger.digest_key("n", "mine", {"a": "1", "b": "2"}, {"x": 1}, ["i", "j"])
    assert key == ledger.digest_key("n", "mine", {"b": "2", "a": "1"}, {"x": 1}, ["j", "i"])
    others = {
        ledger.digest_key("m", "mine", {"a": "1", "b": "2"}, {"x": 1}, ["i", "j"]),
        ledger.digest_key("n", "curate", {"a": "1", "b": "2"}, {"x": 1}, ["i", "j"]),
        ledger.digest_key("n", "mine", {"a": "1", "b": "3"}, {"x": 1}, ["i", "j"]),
        ledger.digest_key("n", "mine", {"a": "1", "b": "2"}, {"x": 2}, ["i", "j"]),
        ledger.digest_key("n", "mine", {"a": "1", "b": "2"}, {"x": 1}, ["i"]),
    }
    assert len(others | {key}) == 6


def test_life_of_a_row(conn: Conn, now: datetime) -> None:
    """Begun at 0 s, failed at 5 s, begun again at 10 s, done at 12.5 s: two attempts, the last took 2.5 s."""
    assert ledger.done(conn, "k") is None
    ledger.begin(conn, "k", "n", "mine", "one", now)
    assert ledger.done(conn, "k") is None
    ledger.fail(conn, "k", "out of memory\0", now + timedelta(seconds=5))
    (row,) = ledger.of_night(conn, "n")
    assert (row.status, row.cause, row.seconds) == ("failed", "out of memory\ufffd", 5.0)
    ledger.begin(conn, "k", "n", "mine", "two", now + timedelta(seconds=10))
    ledger.beat(conn, "k", now + timedelta(seconds=11))
    (row,) = ledger.of_night(conn, "n")
    assert (row.status, row.cause, row.heartbeat_at) == (
        "running",
        None,
        now + timedelta(seconds=11),
    )
    ledger.finish(conn, "k", {"ids": ["a"]}, now + timedelta(seconds=12.5))
    assert ledger.done(conn, "k") == {"ids": ["a"]}
    (row,) = ledger.of_night(conn, "n")
    assert (row.attempts, row.owner, row.seconds) == (2, "two", 2.5)


def test_dead_attempt_is_taken_over(conn: Conn, now: datetime) -> None:
    ledger.begin(conn, "k", "n", "mine", "killed", now)
    ledger.begin(conn, "k", "n", "mine", "next", now)
    assert [(row.attempts, row.owner) for row in ledger.of_night(conn, "n")] == [(2, "next")]


def test_done_work_is_not_begun_again(conn: Conn, now: datetime) -> None:
    ledger.begin(conn, "k", "n", "mine", "one", now)
    ledger.finish(conn, "k", {}, now)
    with pytest.raises(Conflict, match="stage 'mine' of night 'n' is done already"):
        ledger.begin(conn, "k", "n", "mine", "two", now)
    assert ledger.done(conn, "k") == {}
    with pytest.raises(StoreError, match="not running"):
        ledger.fail(conn, "k", "late", now)


def test_work_that_was_not_begun_cannot_finish(conn: Conn, now: datetime) -> None:
    with pytest.raises(StoreError, match="Call `begin` before `finish`"):
        ledger.finish(conn, "unknown", {}, now)


def test_lock_names_its_holder(database: Database) -> None:
    with (
        ledger.night_lock(database, "2026-01-31"),
        ledger.night_lock(database, "2026-02-01"),
        pytest.raises(
            NightRunning, match=r"'2026-01-31' is being worked on by 'nightshift night, pid \d+ on"
        ),
        ledger.night_lock(database, "2026-01-31"),
    ):
        pass
    with ledger.night_lock(database, "2026-01-31"):
        pass


def test_lock_falls_with_a_killed_process(database: Database) -> None:
    program = textwrap.dedent(f"""
        import time, pathlib
        from store.db import open_database
        from store.ledger import night_lock
        with open_database({database.url!r}, pathlib.Path(".")) as db, night_lock(db, "killed"):
            print("held", flush=True)
            time.sleep(60)
    """)
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NightRunning), ledger.night_lock(database, "killed"):
            pass
        holder.kill()
    deadline = time.monotonic() + 10
    while True:
        try:
            with ledger.night_lock(database, "killed"):
                break
        except NightRunning:
            assert time.monotonic() < deadline, "the lock outlived its holder"
            time.sleep(0.05)

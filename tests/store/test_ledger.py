"""The ledger and the night's lock."""

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from components.errors import Conflict, NightRunning, StoreError
from store import ledger
from store.db import Conn, Database

pytestmark = pytest.mark.postgres

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s"
WORK = ledger.Work("k", "desk", "n", "mine")


def test_key_depends_on_everything_but_the_order_of_ids() -> None:
    key = ledger.digest_key("desk", "n", "mine", {"a": "1", "b": "2"}, {"x": 1}, ["i", "j"])
    assert key == ledger.digest_key("desk", "n", "mine", {"b": "2", "a": "1"}, {"x": 1}, ["j", "i"])
    others = {
        ledger.digest_key("shop", "n", "mine", {"a": "1", "b": "2"}, {"x": 1}, ["i", "j"]),
        ledger.digest_key("desk", "m", "mine", {"a": "1", "b": "2"}, {"x": 1}, ["i", "j"]),
        ledger.digest_key("desk", "n", "curate", {"a": "1", "b": "2"}, {"x": 1}, ["i", "j"]),
        ledger.digest_key("desk", "n", "mine", {"a": "1", "b": "3"}, {"x": 1}, ["i", "j"]),
        ledger.digest_key("desk", "n", "mine", {"a": "1", "b": "2"}, {"x": 2}, ["i", "j"]),
        ledger.digest_key("desk", "n", "mine", {"a": "1", "b": "2"}, {"x": 1}, ["i"]),
    }
    assert len(others | {key}) == 7


def test_life_of_a_row(conn: Conn, now: datetime) -> None:
    """Begun at 0 s, failed at 5 s, begun again at 10 s, done at 12.5 s: two attempts, the last took 2.5 s."""
    assert ledger.done(conn, "k") is None
    first = ledger.begin(conn, WORK, "one", now)
    assert ledger.done(conn, "k") is None
    ledger.fail(conn, first, "out of memory\0", now + timedelta(seconds=5))
    (row,) = ledger.of_night(conn, "desk", "n")
    assert (row.status, row.cause, row.seconds) == ("failed", "out of memory\ufffd", 5.0)
    second = ledger.begin(conn, WORK, "two", now + timedelta(seconds=10))
    assert ledger.beat(conn, second, now + timedelta(seconds=11))
    (row,) = ledger.of_night(conn, "desk", "n")
    assert (row.status, row.cause, row.heartbeat_at) == (
        "running",
        None,
        now + timedelta(seconds=11),
    )
    ledger.finish(conn, second, {"ids": ["a"]}, now + timedelta(seconds=12.5))
    assert ledger.done(conn, "k") == {"ids": ["a"]}
    (row,) = ledger.of_night(conn, "desk", "n")
    assert (row.attempts, row.owner, row.seconds) == (2, "two", 2.5)


def test_dead_attempt_is_taken_over(conn: Conn, now: datetime) -> None:
    ledger.begin(conn, WORK, "killed", now)
    ledger.begin(conn, WORK, "next", now)
    assert [(row.attempts, row.owner) for row in ledger.of_night(conn, "desk", "n")] == [
        (2, "next")
    ]


def test_an_attempt_that_was_taken_over_writes_nothing_more(conn: Conn, now: datetime) -> None:
    """A night that lost its lock meets, in the transaction of its rows, the one that has it now."""
    lost = ledger.begin(conn, WORK, "one", now)
    holder = ledger.begin(conn, WORK, "two", now)
    with pytest.raises(NightRunning, match="taken over by 'two'"):
        ledger.finish(conn, lost, {"ids": []}, now)
    with pytest.raises(NightRunning, match="taken over by 'two'"):
        ledger.fail(conn, lost, "slow", now)
    assert not ledger.beat(conn, lost, now + timedelta(hours=1))
    assert ledger.beat(conn, holder, now)
    (row,) = ledger.of_night(conn, "desk", "n")
    assert (row.status, row.owner, row.heartbeat_at) == ("running", "two", now)
    ledger.finish(conn, holder, {}, now)
    assert ledger.done(conn, "k") == {}
    with pytest.raises(NightRunning, match="taken over by 'two'"):
        ledger.fail(conn, lost, "slow", now)


def test_nights_of_one_date_belong_to_their_agents(conn: Conn, now: datetime) -> None:
    ledger.begin(conn, WORK, "one", now)
    ledger.begin(conn, replace(WORK, key="other", agent="shop"), "one", now)
    assert [row.key for row in ledger.of_night(conn, "desk", "n")] == ["k"]
    assert [row.key for row in ledger.of_night(conn, "shop", "n")] == ["other"]


def test_done_work_is_not_begun_again(conn: Conn, now: datetime) -> None:
    attempt = ledger.begin(conn, WORK, "one", now)
    ledger.finish(conn, attempt, {}, now)
    with pytest.raises(Conflict, match="stage 'mine' of night 'n' is done already"):
        ledger.begin(conn, WORK, "two", now)
    assert ledger.done(conn, "k") == {}
    with pytest.raises(StoreError, match="not running"):
        ledger.fail(conn, attempt, "late", now)


def test_work_that_was_not_begun_cannot_finish(conn: Conn, now: datetime) -> None:
    with pytest.raises(StoreError, match="Call `begin` before `finish`"):
        ledger.finish(conn, ledger.Attempt("unknown", 1), {}, now)


def test_lock_names_its_holder(database: Database) -> None:
    with (
        ledger.night_lock(database, "desk"),
        ledger.night_lock(database, "shop"),
        pytest.raises(
            NightRunning, match=r"agent 'desk' is being worked on by 'nightshift night, pid \d+ on"
        ),
        ledger.night_lock(database, "desk"),
    ):
        pass
    with ledger.night_lock(database, "desk"):
        pass


def test_lock_of_a_broken_connection_is_taken_again(database: Database) -> None:
    mine = f"nightshift night, pid {os.getpid()} on %"
    with ledger.night_lock(database, "desk") as lock:
        lock.hold()
        with database.connect() as conn:
            conn.execute(CUT, (mine,))
        lock.hold()
        with pytest.raises(NightRunning), ledger.night_lock(database, "desk"):
            pass
        with database.connect() as conn:
            conn.execute(CUT, (mine,))
        with database.apart("another night") as other:
            other.execute(ledger.TAKE_LOCK, (ledger.LOCK_SPACE, "desk"))
            with pytest.raises(NightRunning, match="worked on by 'another night'"):
                lock.hold()


def test_session_of_ours_that_nobody_hears_any_more_gives_the_lock_up(database: Database) -> None:
    """The network broke: the client has a dead connection, the server one that still holds the lock."""
    with ledger.night_lock(database, "desk") as lock:
        with database.connect() as conn:
            conn.execute(CUT, (f"nightshift night, pid {os.getpid()} on %",))
        with ledger.night_lock(database, "desk"):  # has this process's name too
            lock.hold()
            with pytest.raises(NightRunning), ledger.night_lock(database, "desk"):
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

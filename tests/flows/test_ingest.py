"""Log files as they are in the field: torn, repeated, with characters that no database holds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.records import Trajectory
from components.serial import digest
from flows.ingest import has_new_logs, ingest
from flows.mine import mine
from flows.resources import Resources
from store import ledger, log_files, quarantine, raw_records, trajectories
from tests.flows.homes import Home, rows_of
from tests.kill_night import AGENT
from tests.night_rows import differences

pytestmark = pytest.mark.postgres

FIRST, SECOND, THIRD = "2026-11-28", "2026-11-29", "2026-11-30"


def line(key: str, asked: str, said: str) -> bytes:
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    return json.dumps({"id": key, "messages": messages}).encode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "agent.jsonl"


@pytest.fixture
def reading(nothing_yet: Home, copy_of: Callable[..., Home], log: Path) -> Home:
    return copy_of(nothing_yet, f"ingestion.paths=[{str(log)!r}]")


def read(r: Resources, night: str) -> dict[str, Any]:
    done = ingest(r, night)
    assert done.ok, done.cause
    return done.output


def stored(r: Resources, night: str) -> list[Trajectory]:
    with r.db.connect() as conn:
        ids = trajectories.ids_of_night(conn, AGENT, night, "production")
        return trajectories.get(conn, r.files, ids)


def test_two_agents_on_one_database_have_nights_of_their_own(
    reading: Home, log: Path, tmp_path: Path
) -> None:
    """One date, two agents, two files: each night reads, mines and lists what is its agent's."""
    log.write_bytes(line("1", "a", "b") + b"\n")
    other = tmp_path / "shop.jsonl"
    other.write_bytes(line("2", "c", "d") + b"\n" + line("3", "e", "f") + b"\n")
    with reading.open() as r:
        first = read(r, FIRST)
    with reading.open('agent="shop"', f"ingestion.paths=[{str(other)!r}]") as r:
        second = read(r, FIRST)
        mined = mine(r, FIRST, second["state"])
        assert (second["trajectories"], mined.output["trajectories"]) == (2, 2)
        with r.db.connect() as conn:
            rows = {agent: ledger.of_night(conn, agent, FIRST) for agent in (AGENT, "shop")}
    with reading.open() as r:
        assert read(r, FIRST) == first
        assert [item.messages[0].text for item in stored(r, FIRST)] == ["a"]
    assert [row.stage for row in rows[AGENT]] == ["ingest"]
    assert [row.stage for row in rows["shop"]] == ["ingest", "mine"]


def test_two_agents_may_read_one_file(reading: Home, log: Path) -> None:
    """A good line and a broken one: the second agent finds what the first found, and neither reads it again."""
    log.write_bytes(line("1", "a", "b") + b"\n" + b'{"id": "2\n')
    for agent in (AGENT, "shop"):
        with reading.open(f"agent={agent!r}") as r:
            assert has_new_logs(r), agent
            found = read(r, FIRST)
            assert (found["trajectories"], found["quarantined"]) == (1, 1), agent
    for agent in (AGENT, "shop"):
        with reading.open(f"agent={agent!r}") as r, r.db.connect() as conn:
            assert not has_new_logs(r), agent
            assert raw_records.count(conn, agent) == 1, agent


def test_a_file_that_grows_is_read_on_and_its_torn_end_waits(reading: Home, log: Path) -> None:
    """A blank line, CRLF, a broken line 4, and an end inside a character; the rest of it comes a night later."""
    whole = [line("1", "a", "b") + b"\n", b"\n", line("3", "c", "d") + b"\r\n", b'{"id": "4\n']
    last = line("5", "e", "f") + b"\n"
    torn = '{"id": "6", "messages": [{"role": "user", "content": "caf\xe9"}, '.encode()
    rest = b'{"role": "assistant", "content": "g"}]}\n'
    cut = torn.index(b"\xc3") + 1
    log.write_bytes(b"".join([*whole, last, torn[:cut]]))
    end = len(b"".join([*whole, last]))
    with reading.open() as r:
        read(r, FIRST)
        assert sorted(item.messages[0].text for item in stored(r, FIRST)) == ["a", "c", "e"]
        with r.db.connect() as conn, log.open("rb") as stream:
            (bad,) = quarantine.page(conn, AGENT)
            known = log_files.resume(conn, r.settings.agent, str(log), stream)
        assert (bad.line, bad.start) == (4, len(b"".join(whole[:3])))
        assert known is not None
        assert known.offset == end
        assert not has_new_logs(r)

        with log.open("ab") as file:
            file.write(torn[cut:] + rest)
        assert has_new_logs(r)
        read(r, SECOND)
        assert [item.messages[0].text for item in stored(r, SECOND)] == ["caf\xe9"]
        with r.db.connect() as conn:
            assert raw_records.count(conn, AGENT) == 4
            assert quarantine.count(conn, AGENT) == 1


def test_the_same_records_delivered_again_change_nothing(reading: Home, log: Path) -> None:
    """The exporter sends its file a second time, to the same place and to another one."""
    data = b"".join(line(str(n), f"ask {n}", "said") + b"\n" for n in range(3))
    log.write_bytes(data)
    with reading.open() as r:
        read(r, FIRST)
    kept = ("raw_record", "trajectory", "quarantine")
    before = {table: rows for table, rows in rows_of(reading).items() if table in kept}
    log.write_bytes(data + data)
    again = log.with_name("again.jsonl")
    again.write_bytes(data)
    with reading.open(f"ingestion.paths=[{str(log.parent / '*.jsonl')!r}]") as r:
        output = read(r, SECOND)
        assert stored(r, SECOND) == []
    assert "6 repeated" in output["line"]
    after = {table: rows for table, rows in rows_of(reading).items() if table in kept}
    assert differences(before, after) == []


def test_a_conversation_that_goes_on_is_one_trajectory_of_both_nights(
    reading: Home, log: Path
) -> None:
    """An agent sends its whole history with each call; the call of the second night contains the first."""

    def call(messages: list[dict[str, str]], answer: str) -> bytes:
        body = {"model": "m", "messages": messages}
        choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        told = {"conversation": "c-1", "request": body, "response": {"choices": [choice]}}
        return json.dumps(told).encode() + b"\n"

    asked = [{"role": "user", "content": "one"}]
    more = [
        *asked,
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two"},
    ]
    log.write_bytes(call(asked, "first"))
    with reading.open() as r:
        read(r, FIRST)
        (begun,) = stored(r, FIRST)
        with log.open("ab") as file:
            file.write(call(more, "second"))
        read(r, SECOND)
        (grown,) = stored(r, SECOND)
        assert stored(r, FIRST) == [grown]
        read(r, THIRD)
        assert stored(r, THIRD) == []
    assert grown.id == begun.id
    assert [turn.action.text for turn in grown.turns] == ["first", "second"]


def test_characters_that_no_database_holds_are_replaced_and_marked(
    reading: Home, log: Path
) -> None:
    """NUL in a value and in a key, half a surrogate pair; text about an escape and a whole pair stay."""
    log.write_bytes(
        rb'{"id": "n", "messages": [{"role": "user", "content": "a\u0000b", "k\u0000": 1}, '
        rb'{"role": "assistant", "content": "cut \ud83d"}, {"role": "user", "content": "\\u0000"}, '
        rb'{"role": "assistant", "content": "\ud83c\udf78"}]}' + b"\n"
    )
    with reading.open() as r:
        read(r, FIRST)
        (found,) = stored(r, FIRST)
        (vector,) = r.embed(["\n".join(message.text for message in found.messages)])
    assert [message.text for message in found.messages] == [
        "a\ufffdb",
        "cut \ufffd",
        "\\u0000",
        "\U0001f378",
    ]
    assert ["altered" in message.marks for message in found.messages] == [True, True, False, False]
    assert len(digest(found)) == 64
    assert len(vector) == 384

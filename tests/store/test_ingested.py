"""Log files, raw records and quarantine."""

import io
import json
from datetime import datetime

import pytest

from components.protocols import RawRecord, Rejected
from store import log_files, quarantine, raw_records
from store.db import Conn
from store.log_files import LogFile

pytestmark = pytest.mark.postgres


def read_to(content: bytes, offset: int, now: datetime) -> LogFile:
    mark = log_files.fingerprint(io.BytesIO(content), offset)
    return LogFile("a.jsonl", "desk", "openai_chat", offset, len(content), 3, mark, now)


def test_grown_file_is_read_on(conn: Conn, now: datetime) -> None:
    """300 of 310 bytes consumed; the file grows to 400: reading goes on at 300."""
    content = bytes(range(256)) + b"x" * 54
    assert log_files.resume(conn, "desk", "a.jsonl", io.BytesIO(content)) is None
    log_files.put(conn, read_to(content, 300, now))
    stream = io.BytesIO(content + b"y" * 90)
    found = log_files.resume(conn, "desk", "a.jsonl", stream)
    assert found is not None
    assert (found.offset, found.num_lines) == (300, 3)
    assert stream.tell() == 0


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(b"other" * 100, id="rotated"),
        pytest.param(b"", id="emptied"),
        pytest.param(b"a" * 8000, id="cut"),
        pytest.param(b"a" * 9000 + b"B" * 1000 + b"c" * 100, id="same beginning, other end"),
    ],
)
def test_other_content_is_read_from_the_start(conn: Conn, now: datetime, changed: bytes) -> None:
    content = b"a" * 9000 + b"b" * 1000
    log_files.put(conn, read_to(content, 10_000, now))
    assert log_files.resume(conn, "desk", "a.jsonl", io.BytesIO(content)) is not None
    assert log_files.resume(conn, "desk", "a.jsonl", io.BytesIO(changed)) is None


def record(
    key: str, payload: dict[str, object], conversation: str = "c", start: int = 0
) -> RawRecord:
    return RawRecord(key, "openai_chat", conversation, payload, start, start + 10, 1)


def test_same_records_again_add_nothing(conn: Conn) -> None:
    batch = [record("r1", {"z": 1, "a": 2}), record("r2", {}, start=10)]
    assert raw_records.put(conn, batch, "a.jsonl", "desk").num_new == 2
    assert raw_records.put(conn, [*batch, record("r3", {}, "d")], "b.jsonl", "desk").num_new == 1
    found = raw_records.of_conversations(conn, "desk", "openai_chat", ["c", "absent"])
    assert found == {"c": batch, "absent": []}
    assert list(found["c"][0].payload) == ["z", "a"]
    assert raw_records.of_conversations(conn, "other", "openai_chat", ["c"]) == {"c": []}
    assert raw_records.count(conn, "desk") == 3


def test_records_at_hand_are_not_read_back(conn: Conn) -> None:
    """Of a batch, what is new and stored as given is at hand: not r1, known before, not r2, altered by storing."""
    earlier = record("r1", {"a": 1})
    assert raw_records.put(conn, [earlier], "a.jsonl", "desk").at_hand == [earlier]
    fresh = record("r3", {"c": 3}, start=20)
    batch = [record("r1", {"a": 1}, start=50), record("r2", {"b": "\0"}, start=10), fresh]
    written = raw_records.put(conn, batch, "a.jsonl", "desk")
    assert written == (2, [fresh], ["c"])
    assert raw_records.put(conn, batch, "b.jsonl", "desk") == (0, [], [])
    found = raw_records.of_conversations(conn, "desk", "openai_chat", ["c"], written.at_hand)["c"]
    assert [item.id for item in found] == ["r1", "r2", "r3"]
    assert found[0].start == 0  # as it was stored first
    assert found[1].payload == {"b": "\ufffd"}
    assert found[2] is fresh


def test_nul_and_half_pairs_are_stored_readable(conn: Conn) -> None:
    """Three records: NUL in key and value, half a pair, and a whole pair that is left alone."""
    lines = [
        r'{"content": "head\u0000tail", "key\u0000x": 1, "note": "looks like \\u0000 in JSON"}',
        r'{"content": "caf\udcb2 price"}',
        r'{"content": "whole pair: \ud83c\udf78"}',
    ]
    batch = [record(f"r{n}", json.loads(line), start=n) for n, line in enumerate(lines)]
    assert raw_records.put(conn, batch, "a.jsonl", "desk").num_new == 3
    found = raw_records.of_conversations(conn, "desk", "openai_chat", ["c"])["c"]
    assert [item.marks for item in found] == [("altered",), ("altered",), ()]
    assert found[0].payload == {
        "content": "head\ufffdtail",
        "key\ufffdx": 1,
        "note": "looks like \\u0000 in JSON",
    }
    assert found[1].payload["content"] == "caf\ufffd price"
    assert found[2].payload["content"] == "whole pair: \U0001f378"


def test_conversation_ids_of_any_kind(conn: Conn) -> None:
    """A log decides these names: one of 10,000 characters and one with NUL must not stop the batch."""
    names = ["long " * 2000, "odd\0name"]
    batch = [record(f"r{n}", {}, name) for n, name in enumerate(names)]
    assert raw_records.put(conn, batch, "a.jsonl", "desk").num_new == 2
    found = raw_records.of_conversations(conn, "desk", "openai_chat", names)
    assert [[item.id for item in found[name]] for name in names] == [["r0"], ["r1"]]


def test_quarantine_reports_each_place_once(conn: Conn) -> None:
    bad = [
        Rejected("not JSON: line 4", 100, 150, 4, '{"broken\0'),
        Rejected("too long", 200, 9000, 7, "x" * 5000),
    ]
    assert quarantine.put(conn, bad, "a.jsonl", "desk", "2026-01-30") == 2
    assert quarantine.put(conn, bad, "a.jsonl", "desk", "2026-01-31") == 0
    found = quarantine.page(conn, "desk")
    assert [(item.uri, item.line, item.start, item.reason) for item in found] == [
        ("a.jsonl", 4, 100, "not JSON: line 4"),
        ("a.jsonl", 7, 200, "too long"),
    ]
    assert found[0].text == '{"broken\ufffd'
    assert len(found[1].text) == 2000
    assert quarantine.count(conn, "desk", "2026-01-30") == 2
    assert quarantine.count(conn, "desk", "2026-01-31") == 0
    assert len(quarantine.page(conn, "desk", limit=1, offset=1)) == 1

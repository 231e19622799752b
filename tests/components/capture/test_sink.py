"""Lines on disk whole or not at all, and a spool that outlives a failing sink."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from components.capture.sink import JsonlSink, Spool
from components.errors import RecordError


def line(n: int = 1, **more: Any) -> dict[str, Any]:
    return {"agent": "desk", "at": "2026-03-01T23:59:59+00:00", "n": n} | more


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_one_file_per_agent_and_day(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, fsync=True)
    for item in (line(1), line(2), line(3, at="2026-03-02T00:00:00+00:00"), line(4, agent="shop")):
        sink.write(item)
    found = {
        str(path.relative_to(tmp_path)): len(lines_of(path)) for path in tmp_path.rglob("*.jsonl")
    }
    assert found == {
        "desk/2026-03-01.jsonl": 2,
        "desk/2026-03-02.jsonl": 1,
        "shop/2026-03-01.jsonl": 1,
    }


def test_a_torn_end_does_not_swallow_the_next_line(tmp_path: Path) -> None:
    """A machine died inside a line: what is written next stands on a line of its own."""
    path = tmp_path / "desk" / "2026-03-01.jsonl"
    path.parent.mkdir()
    path.write_text('{"n": 0}\n{"n": ')
    JsonlSink(tmp_path).write(line(1))
    first, torn, last = path.read_text().splitlines()
    assert (json.loads(first)["n"], torn, json.loads(last)["n"]) == (0, '{"n": ', 1)


@pytest.mark.parametrize("agent", ["../up", ".hidden", "a/b", "", "x" * 65, None])
def test_an_agent_cannot_leave_the_folder(tmp_path: Path, agent: str | None) -> None:
    with pytest.raises(RecordError, match="cannot name a folder"):
        JsonlSink(tmp_path).write(line(agent=agent))
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_text_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    JsonlSink(tmp_path).write(line(text="half \ud83d", big=2**80))
    assert lines_of(tmp_path / "desk" / "2026-03-01.jsonl")[0]["text"] == "half \ud83d"
    with pytest.raises(RecordError, match="JSON"):
        JsonlSink(tmp_path).write(line(thing=object()))


def test_a_short_write_is_taken_back(tmp_path: Path) -> None:
    """A limit on the file's size cuts the second line after five bytes: the file keeps its first line, whole."""
    sink, path = JsonlSink(tmp_path), tmp_path / "desk" / "2026-03-01.jsonl"
    sink.write(line(1))
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, hard))
    try:
        with pytest.raises(OSError, match="wrote 5 of"):
            sink.write(line(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [item["n"] for item in lines_of(path)] == [1]
    sink.write(line(3))
    assert [item["n"] for item in lines_of(path)] == [1, 3]


def test_a_line_without_a_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="ISO time"):
        JsonlSink(tmp_path).write({"agent": "desk", "at": "../../../x"})


class Flaky:
    """A sink that is broken until it is mended, and that refuses bad lines for good."""

    def __init__(self) -> None:
        self.broken = True
        self.kept: list[int] = []

    def write(self, line: dict[str, Any]) -> None:
        if self.broken:
            raise OSError("disk full")
        if line["n"] < 0:
            raise RecordError("bad line")
        self.kept.append(line["n"])


def test_spool_keeps_order_and_counts() -> None:
    """Four lines while broken with room for three: the first is lost, the rest come in order once the sink is mended."""
    sink = Flaky()
    spool = Spool(sink, max_lines=3)
    for n in (1, 2, 3, 4):
        spool.put(line(n))
    assert (len(spool), spool.num_written, spool.num_dropped, spool.num_failures) == (3, 0, 1, 4)
    assert spool.last_error is not None
    assert "disk full" in spool.last_error
    sink.broken = False
    spool.put(line(5))
    assert sink.kept == [3, 4, 5]
    spool.put(line(6))
    assert (sink.kept, len(spool), spool.num_written) == ([3, 4, 5, 6], 0, 4)


def test_a_line_that_is_refused_for_good_does_not_block() -> None:
    sink = Flaky()
    sink.broken = False
    spool = Spool(sink, max_lines=3)
    for n in (1, -1, 2):
        spool.put(line(n))
    assert (sink.kept, spool.num_dropped, len(spool), spool.last_error) == (
        [1, 2],
        1,
        0,
        "bad line",
    )

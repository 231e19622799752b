"""Where recorded lines go: a sink, the JSON-lines sink, and the spool that keeps serving alive when a sink fails.

Lines of one agent and one UTC day are appended to `<folder>/<agent>/<date>.jsonl`, one write call per line. A line is in
the file whole or not at all: a short write (full disk) is taken back, and a file that ends inside a line, because a
machine died there, gets its newline first. Several processes may write to one folder (an advisory lock per write).
"""

import fcntl
import json
import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from components.errors import RecordError

AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class Sink(Protocol):
    def write(self, line: dict[str, Any]) -> None:
        """Keep one line.

        Raises:
            RecordError: this line can never be kept.
            OSError: not now.
        """
        ...


@dataclass(frozen=True)
class JsonlSink:
    folder: Path
    fsync: bool = False
    """Wait until each line is on the disk: it survives a power failure, at a few milliseconds a line."""

    def write(self, line: dict[str, Any]) -> None:
        agent, day = line.get("agent") or "", str(line.get("at"))[:10]
        if not AGENT.fullmatch(agent):
            raise RecordError(
                f"agent {agent!r} cannot name a folder: use up to 64 letters, digits, dots, dashes"
            )
        if not DAY.fullmatch(day):
            raise RecordError(f"line of {agent!r} has at={line.get('at')!r}, expected an ISO time")
        path = self.folder / agent / f"{day}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._append(handle, _encode(line))
        finally:
            os.close(handle)

    def _append(self, handle: int, data: bytes) -> None:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data
        written = 0
        try:
            written = os.write(handle, data)
            if self.fsync:
                os.fsync(handle)
        finally:
            if written != len(data):
                os.ftruncate(handle, size)
        if written != len(data):
            raise OSError(f"wrote {written} of {len(data)} bytes; is the disk full?")


def _encode(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        pass  # Half a surrogate pair or a huge integer: the standard encoder escapes them.
    try:
        return json.dumps(line).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise RecordError(f"line cannot be written as JSON: {error}") from error


class Spool:
    """A bounded queue before a sink. A failing sink is tried again with the next line and on `flush`."""

    def __init__(self, sink: Sink, max_lines: int) -> None:
        self._sink = sink
        self._max_lines = max_lines
        self._lines: deque[dict[str, Any]] = deque()
        self.num_written = 0
        self.num_failures = 0
        """Writes that failed and are tried again."""
        self.num_dropped = 0
        """Lines lost: refused by the sink, or pushed out of a full queue."""
        self.last_error: str | None = None

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, line: dict[str, Any]) -> None:
        """Keep a line; never raises."""
        if len(self._lines) >= self._max_lines:
            self._lines.popleft()
            self.num_dropped += 1
        self._lines.append(line)
        self.flush()

    def flush(self) -> None:
        """Write what waits, in order, as far as the sink takes it."""
        while self._lines:
            try:
                self._sink.write(self._lines[0])
                self.num_written += 1
            except RecordError as error:
                self.num_dropped += 1
                self.last_error = str(error)
            except (
                Exception
            ) as error:  # The sink is foreign code, and serving goes on whatever it does.
                self.num_failures += 1
                self.last_error = repr(error)
                return
            self._lines.popleft()

"""Ingest: every new byte of the logs becomes a stored record, a quarantined line, or waits for the rest of its line.

One transaction per chunk writes the raw records, the trajectories they complete, the quarantine and the place reached,
so a killed run leaves no half. A file that grew is read on, a rotated one from the start, a repeated record adds nothing.
"""

import argparse
import contextlib
import gc
import glob
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from components import plugins
from components.errors import ConfigError, RecordError
from components.ingestion.detect import HEAD_BYTES, can_continue, choose
from components.protocols import RawRecord, Reader, Rejected
from components.records import SourceRef, Trajectory
from components.serial import digest
from flows.resources import Resources, open_resources
from flows.settings import Settings
from flows.splits import is_held_out
from flows.stage import Deadline, Stage, StageResult, Write, run_stage
from store import log_files, quarantine, raw_records, trajectories
from store.db import Conn


@dataclass
class Tally:
    """What an ingestion found."""

    files: int = 0
    records: int = 0
    trajectories: int = 0
    quarantined: int = 0
    duplicates: int = 0
    unread: list[str] = field(default_factory=list)
    """Files that no reader knows."""

    @property
    def line(self) -> str:
        parts = [
            f"{self.records} new records in {self.files} files",
            f"{self.trajectories} trajectories new or changed",
            f"{self.quarantined} lines quarantined",
        ]
        if self.duplicates:
            parts.append(f"{self.duplicates} repeated")
        if self.unread:
            parts.append(f"{len(self.unread)} files of unknown format")
        return ", ".join(parts)


def log_paths(settings: Settings) -> list[Path]:
    """The log files of this project in a fixed order."""
    patterns = settings.ingestion.paths or (str(settings.home / "logs" / settings.agent),)
    return expand(patterns, must_exist=bool(settings.ingestion.paths))


def expand(patterns: Sequence[str], must_exist: bool) -> list[Path]:
    """Files named by files, folders and globs.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = [Path(match) for match in glob.glob(pattern, recursive=True)]
        if not matches and must_exist:
            raise ConfigError(
                f"no log file matches {pattern!r}; give existing files, folders or globs"
            )
        for match in matches:
            inside = match.rglob("*") if match.is_dir() else [match]
            found.update(path.resolve() for path in inside if path.is_file())
    return sorted(found)


def ingest(r: Resources, night: str) -> StageResult:
    """The stage: all files of the project."""
    paths = log_paths(r.settings)
    stage = Stage(
        agent=r.settings.agent,
        night=night,
        name="ingest",
        versions=dict(_reader_versions()),
        config=r.settings.ingestion.model_dump(mode="json"),
        inputs=tuple(_state_of(path) for path in paths),
    )

    def work(deadline: Deadline) -> Write:
        tally = read_files(r, paths, night, deadline)

        def write(conn: Conn) -> dict[str, Any]:
            ids = trajectories.ids_of_night(conn, r.settings.agent, night, "production")
            return {
                "line": tally.line,
                "trajectories": len(ids),
                "quarantined": quarantine.count(conn, r.settings.agent, night),
                "unread": tally.unread,
                "state": trajectories.state_of_night(conn, r.settings.agent, night, "production"),
            }

        return write

    return run_stage(r, stage, work)


def _reader_versions() -> Iterator[tuple[str, str]]:
    for name in plugins.names("ingestion"):
        yield f"ingestion/{name}", plugins.version_of(plugins.make("ingestion", name))


def _state_of(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    return digest([str(path), path.stat().st_size, digest(head)])


def has_new_logs(r: Resources) -> bool:
    """Whether any log file has bytes that no night has read."""
    for path in log_paths(r.settings):
        with path.open("rb") as stream, r.db.connect() as conn:
            known = log_files.resume(conn, r.settings.agent, str(path), stream)
        if known is None or path.stat().st_size > known.size:
            return True
    return False


def read_files(r: Resources, paths: Iterable[Path], night: str, deadline: Deadline) -> Tally:
    """Read these files from where they were left."""
    tally = Tally()
    for path in r.track(list(paths), "reading logs"):
        deadline.check(f"reading {path.name!r}")
        with path.open("rb") as stream, _without_cycle_search():
            _read_file(r, path, stream, night, tally)
    return tally


@contextlib.contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Records are trees. Python would look for cycles among all live ones again and again, for half of the whole time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_file(r: Resources, path: Path, stream: BinaryIO, night: str, tally: Tally) -> None:
    uri = str(path)
    with r.db.connect() as conn:
        known = log_files.resume(conn, r.settings.agent, uri, stream)
    size = path.stat().st_size
    if known is not None and known.size == size:
        return
    stream.seek(0)
    head = stream.read(HEAD_BYTES)
    name = r.settings.ingestion.format
    if name == "auto":
        name, detection = choose(head, path.name)
        if name is None:
            tally.unread.append(f"{uri}: {detection.why}")
            return
    reader: Reader = plugins.make("ingestion", name)
    stream.seek(known.offset if known else 0)
    tally.files += 1
    chunk = _Chunk(
        r, uri, name, night, known.offset if known else 0, known.num_lines if known else 0
    )
    items = reader.read(stream)
    while batch := list(itertools.islice(items, r.settings.ingestion.chunk)):
        with r.db.connect() as conn:
            chunk.write(conn, reader, batch, tally)
            if can_continue(head):
                chunk.note_progress(conn, stream, size)
    with r.db.connect() as conn:
        chunk.note_progress(conn, stream, size)


@dataclass
class _Chunk:
    """Where one file stands, and how a batch of its items is written."""

    r: Resources
    uri: str
    format: str
    night: str
    offset: int
    num_lines: int

    def write(
        self,
        conn: Conn,
        reader: Reader,
        batch: Sequence[RawRecord | Rejected],
        tally: Tally,
    ) -> None:
        agent = self.r.settings.agent
        records = [item for item in batch if isinstance(item, RawRecord)]
        rejected = [item for item in batch if isinstance(item, Rejected)]
        written = raw_records.put(conn, records, self.uri, agent)
        tally.records += written.num_new
        tally.duplicates += len(records) - written.num_new
        stored = raw_records.of_conversations(
            conn, agent, self.format, written.conversations, written.at_hand
        )
        made: list[Trajectory] = []
        for conversation in written.conversations:
            try:
                made.append(self._assemble(reader, stored[conversation], agent))
            except RecordError as error:
                first = stored[conversation][0]
                rejected.append(Rejected(str(error), first.start, first.end, first.line))
        tally.trajectories += trajectories.put(conn, self.r.files, made, self.night, "production")
        tally.quarantined += quarantine.put(conn, rejected, self.uri, agent, self.night)
        self.offset = max(self.offset, *(item.end for item in batch))
        self.num_lines = max([self.num_lines, *(item.line or 0 for item in batch)])

    def _assemble(self, reader: Reader, records: Sequence[RawRecord], agent: str) -> Trajectory:
        trajectory = reader.assemble(records, agent)
        source = trajectory.source or SourceRef(self.format, self.uri)
        split = "train"
        if self.r.settings.environment is None and is_held_out(trajectory):
            split = "test"
        return replace(trajectory, split=split, source=replace(source, uri=self.uri))

    def note_progress(self, conn: Conn, stream: BinaryIO, size: int) -> None:
        log_files.put(
            conn,
            log_files.LogFile(
                uri=self.uri,
                agent=self.r.settings.agent,
                format=self.format,
                offset=self.offset,
                size=size,
                num_lines=self.num_lines,
                fingerprint=log_files.fingerprint(stream, self.offset),
                read_at=datetime.now(UTC),
            ),
        )


def ingest_paths(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift ingest PATH...`: read logs into the store without running a night."""
    paths = expand(arguments.paths, must_exist=True)
    section = settings.ingestion.model_copy(update={"format": arguments.format})
    settings = settings.model_copy(update={"ingestion": section})
    with contextlib.ExitStack() as stack:
        r = stack.enter_context(open_resources(settings))
        tally = read_files(r, paths, datetime.now(UTC).date().isoformat(), Deadline("ingest", 1e9))
        with r.db.connect() as conn:
            reasons = quarantine.page(conn, settings.agent, limit=20)
    print(tally.line)
    for item in reasons:
        print(f"  quarantined {item.uri}:{item.line or item.start}: {item.reason}")
    for name in tally.unread:
        print(f"  not read: {name}")
    return 0

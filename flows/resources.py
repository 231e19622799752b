"""What a flow works with, opened once: settings, database, files, tracking, and a way to talk to the operator."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from components import embedding
from components.protocols import Embed
from flows.settings import Settings
from store import db as database
from store.files import FileStore
from store.runs import Tracking, open_tracking

T = TypeVar("T")


@dataclass
class Resources:
    settings: Settings
    db: database.Database
    files: FileStore
    console: Console

    @property
    def home(self) -> Path:
        return self.settings.home

    @property
    def work(self) -> Path:
        """Scratch for checkpoints of unfinished stages."""
        return self.home / "work"

    @property
    def threads(self) -> int:
        """Torch threads: the setting, or the cores this process may use."""
        return self.settings.engine.threads or len(os.sched_getaffinity(0))

    @cached_property
    def tracking(self) -> Tracking:
        """MLflow, opened on first use: its import alone takes seconds."""
        uri = self.settings.store.tracking_uri or self.db.sqlalchemy_url("mlflow")
        return open_tracking(uri, self.home / "artifacts")

    @cached_property
    def embed(self) -> Embed:
        """The sentence embedder, loaded on first use."""
        return embedding.load_embedder(self.threads)

    def say(self, stage: str, line: str, seconds: float) -> None:
        """One line about a stage."""
        self.console.print(f"  {stage:<9}{line}  [dim]{seconds:.1f} s[/dim]", highlight=False)

    def log(self, text: str) -> None:
        """Details for the operator, as plain text."""
        self.console.print(text, markup=False, highlight=False, style="dim")

    def track(self, items: Sequence[T], what: str) -> Iterator[T]:
        """The items, with a progress bar."""
        with self.progress(what, len(items)) as advance:
            for item in items:
                yield item
                advance(1)

    @contextmanager
    def progress(self, what: str, total: int | None) -> "Iterator[Advance]":
        """A progress bar that is moved by calling what it yields."""
        columns = (
            TextColumn("    {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            job = bar.add_task(what, total=total)
            yield Advance(bar, job)


@dataclass(frozen=True)
class Advance:
    bar: Progress
    job: TaskID

    def __call__(self, count: int = 1) -> None:
        self.bar.advance(self.job, count)


@contextmanager
def open_resources(settings: Settings, console: Console | None = None) -> Iterator[Resources]:
    """Open the store (starting the embedded server if that is configured), migrate it, and close it again."""
    settings.home.mkdir(parents=True, exist_ok=True)
    with database.open_database(settings.store.database_url, settings.home) as db:
        with db.connect() as conn:
            database.upgrade(conn)
        files = FileStore(settings.home / "files")
        yield Resources(settings, db, files, console or Console(file=sys.stderr))

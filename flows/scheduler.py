"""`nightshift schedule`: a Prefect server that schedules, and this process that runs the nights it starts.

Prefect's temporary server, which a single night brings along, schedules nothing. A server named by `PREFECT_API_URL` is
used as it is; without one, one is started here and stopped at the end.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx

from components.errors import Unavailable
from flows.orphans import SCHEDULER, end_orphaned_servers
from flows.settings import Settings

HOST = "127.0.0.1"
START_S = 300.0
STOP_S = 10.0


def schedule(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift schedule`: the night by its cron line, one at a time, until Ctrl-C."""
    end_orphaned_servers(os.environ["PREFECT_HOME"])
    with prefect_server():
        from prefect.schedules import Cron  # after the server's address is known

        from flows.nightly import nightly

        cron = Cron(settings.schedule.cron, timezone=settings.schedule.timezone)
        print(f"nights by cron {settings.schedule.cron!r}, time zone {settings.schedule.timezone}")
        nightly.serve(
            name=f"nightly-{settings.agent}",
            schedule=cron,
            limit=1,
            parameters={
                "profile": settings.profile,
                "config": str(arguments.config.resolve()) if arguments.config else None,
                "overrides": list(arguments.overrides),
            },
        )
    return 0


@contextmanager
def prefect_server() -> Iterator[str]:
    """The address of a server that schedules: the user's own, or one that lives as long as the block.

    Raises:
        Unavailable: the server did not answer in time.
    """
    known = os.environ.get("PREFECT_API_URL")
    if known:
        yield known
        return
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        HOST,
        "--port",
        str(port),
    ]
    variables = {**os.environ, SCHEDULER[0]: SCHEDULER[1]}
    # A process group of its own: Ctrl-C is for the nights; the server is stopped after them.
    server = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, process_group=0)
    url = f"http://{HOST}:{port}/api"
    try:
        _wait_for(server, url)
        os.environ["PREFECT_API_URL"] = url
        yield url
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        server.terminate()
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for(server: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise Unavailable(
        f"the Prefect server at {url!r} did not start in {START_S:.0f} s (exit status {server.poll()}). "
        "Look at what it printed, or set PREFECT_API_URL to one that runs."
    )

"""Processes that stay: the review app, MLflow, the proxy, the engine."""

import argparse
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from components.capture.proxy import ProxyOptions, make_proxy
from components.capture.sink import JsonlSink
from components.errors import Unavailable
from components.rollout.server import ServerOptions, make_server
from flows import policies
from flows.day import MODEL
from flows.promotion import carry_out
from flows.resources import Resources, open_resources
from flows.settings import Settings

HOST = "127.0.0.1"
REQUESTS_EVERY_S = 1.0
APP = Path(__file__).parents[1] / "ui" / "app.py"


def ui(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift ui`: the review app on localhost."""
    with open_resources(settings) as r:
        uri = settings.store.tracking_uri or r.db.sqlalchemy_url("mlflow")
    own = ["--home", str(settings.home), "--agent", settings.agent, "--tracking-uri", uri]
    if settings.store.database_url:
        own += ["--database-url", settings.store.database_url]
    command = [
        *(sys.executable, "-m", "streamlit", "run", str(APP)),
        f"--server.port={arguments.port}",
        f"--server.address={HOST}",
        "--server.headless=true",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
        "--",
        *own,
    ]
    print(f"review app: http://{HOST}:{arguments.port}   (Ctrl-C ends it)", flush=True)
    with open_resources(settings) as r:  # keeps the embedded server up while the app runs
        return _serve_requests(r, subprocess.Popen(command))


def _serve_requests(r: Resources, app: "subprocess.Popen[bytes]") -> int:
    """Carry out what is asked for in the app, until it or this process is ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while app.poll() is None:
            try:
                carry_out(r)
            except Unavailable as error:
                r.log(f"requests wait: {error}")
            time.sleep(REQUESTS_EVERY_S)
    finally:
        app.terminate()
    return app.wait()


def mlflow(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift mlflow`: MLflow's own pages on the runs and the registry."""
    with open_resources(settings) as r:
        uri = settings.store.tracking_uri or r.db.sqlalchemy_url("mlflow")
        command = [
            *(sys.executable, "-m", "mlflow", "server"),
            *("--backend-store-uri", uri),
            *("--artifacts-destination", str(settings.home / "artifacts")),
            *("--host", HOST, "--port", str(arguments.port), "--workers", "1"),
        ]
        print(f"MLflow: http://{HOST}:{arguments.port}   (Ctrl-C ends it)", flush=True)
        return subprocess.run(command, check=False).returncode


def proxy(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift proxy`: record any agent's traffic where the night will read it."""
    folder = settings.home / "logs"
    app = make_proxy(
        arguments.upstream,
        JsonlSink(folder),
        lambda: datetime.now(UTC),
        ProxyOptions(agent=settings.agent),
    )
    print(f"proxy: http://{HOST}:{arguments.port}/v1 -> {arguments.upstream}, logs in {folder}")
    uvicorn.run(app, host=HOST, port=arguments.port, log_level="warning")
    return 0


def engine(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift engine up`: the champion as an OpenAI-compatible endpoint."""
    with open_resources(settings) as r:
        champion = policies.ensure_champion(r)
        policy = policies.load(r, champion.adapter)
        actor = policies.actor_of(r, policy, policies.version_name(champion.adapter))
        app = make_server(
            actor.engine,
            actor.renderer,
            MODEL,
            lambda: datetime.now(UTC),
            ServerOptions(max_context=settings.model.max_context),
        )
    print(f"engine: http://{HOST}:{arguments.port}/v1, model {MODEL!r}, version {champion.version}")
    uvicorn.run(app, host=HOST, port=arguments.port, log_level="warning")
    return 0

"""The day: customers of the world come to the champion, through the recording proxy, over real HTTP.

    customer's agent loop -> proxy (records) -> engine server -> champion

All three run in this process on loopback ports; the engine has a thread and an event loop of its own, since each of its
steps holds the loop for a forward pass. What the proxy writes is what the night reads; nothing else passes between day and
night. Memory in service is recalled into each conversation, as it will be evaluated.
"""

import argparse
import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import httpx
import uvicorn

from components.capture.proxy import ProxyOptions, make_proxy
from components.capture.sink import JsonlSink
from components.errors import ConfigError, NightshiftError
from components.harnesses.customers import Served, Visit, serve_customer
from components.llm import ChatClient, Endpoint
from components.records import Task
from components.rollout.server import ServerOptions, make_server
from flows import policies
from flows.remember import in_service, recall_blocks
from flows.resources import Resources, open_resources
from flows.settings import Settings

MODEL = "champion"
START_S = 20.0
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Today:
    number: int
    """Days of this project so far, this one included."""
    tasks: list[Task]
    memory: list[str]


def day(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`nightshift day`: serve one day's customers and leave their logs."""
    with open_resources(settings) as r:
        champion = policies.ensure_champion(r)
        r.console.print(
            f"[bold]Day[/bold] of {settings.agent}: {settings.day.customers} customers come to version "
            f"{champion.version}"
        )
        policy = policies.load(r, champion.adapter)
        actor = policies.actor_of(r, policy, policies.version_name(champion.adapter))
        limits = ServerOptions(max_context=settings.model.max_context)
        server = make_server(actor.engine, actor.renderer, MODEL, _now, limits)
        today = plan_day(r)
        served = asyncio.run(_serve(r, server, today))
        report(r, today, served)
    return 0


def _now() -> datetime:
    return datetime.now(UTC)


def plan_day(r: Resources) -> Today:
    """Who comes today: training tasks of the world that no earlier day drew from the same seed."""
    number = _next_number(r.home / "days.json")
    rng = Random(f"{r.settings.seed}-day-{number}")
    world = policies.world_of(r.settings)
    tasks = [task for task, _ in world.tasks(r.settings.day.customers, "train", rng)]
    return Today(
        number, tasks, recall_blocks(r, in_service(r), [task.instruction for task in tasks])
    )


def _next_number(path: Path) -> int:
    number = json.loads(path.read_text())["days"] + 1 if path.is_file() else 1
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"days": number}))
    os.replace(unfinished, path)
    return number


async def _serve(r: Resources, server: Any, today: Today) -> list[Served]:
    settings = r.settings
    world: Any = policies.world_of(settings)
    options = ProxyOptions(agent=settings.agent, ask_tokens=True)
    sink = JsonlSink(settings.home / "logs")
    with in_thread(server) as engine_port:
        proxy = make_proxy(f"http://127.0.0.1:{engine_port}/v1", sink, _now, options)
        async with _listening(proxy, settings.day.port) as port:
            root = f"http://127.0.0.1:{port}"
            endpoint = Endpoint(
                url=f"{root}/v1",
                model=MODEL,
                timeout_s=TIMEOUT_S,
                max_in_flight=settings.day.concurrency,
            )
            async with (
                ChatClient(endpoint) as client,
                httpx.AsyncClient(base_url=root, timeout=TIMEOUT_S, trust_env=False) as feedback,
            ):
                return await _all_customers(r, world, client, feedback, today)


async def _all_customers(
    r: Resources, world: Any, client: ChatClient, feedback: httpx.AsyncClient, today: Today
) -> list[Served]:
    settings = r.settings
    turnstile = asyncio.Semaphore(settings.day.concurrency)

    async def post(conversation: str, body: dict[str, Any]) -> None:
        answer = await feedback.post(
            "/v1/feedback",
            json={"agent": settings.agent, "conversation": conversation, "feedback": body},
        )
        if answer.status_code >= 400:
            raise NightshiftError(f"the proxy refused feedback: {answer.status_code} {answer.text}")

    with r.progress("serving customers", len(today.tasks)) as advance:

        async def one(task: Task, memory: str) -> Served:
            visit = Visit(
                conversation=f"day-{today.number}-{task.id}",
                agent=settings.agent,
                max_tokens=settings.day.max_tokens,
                temperature=settings.day.temperature,
                memory=memory,
            )
            async with turnstile:
                served = await serve_customer(task, world, client, post, visit)
            advance(1)
            return served

        jobs = [one(task, memory) for task, memory in zip(today.tasks, today.memory, strict=True)]
        return list(await asyncio.gather(*jobs))


@asynccontextmanager
async def _listening(app: Any, port: int) -> AsyncIterator[int]:
    """An ASGI app on a loopback port of this event loop, while the block runs."""
    server, held = _server(app, port)
    running = asyncio.create_task(server.serve(sockets=[held]))
    try:
        async with asyncio.timeout(START_S):
            while not server.started:
                await asyncio.sleep(0.01)
        yield held.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        held.close()


@contextmanager
def in_thread(app: Any, port: int = 0) -> Iterator[int]:
    """An ASGI app on a loopback port, with a thread and an event loop of its own, while the block runs."""
    server, held = _server(app, port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [held]}, name="engine")
    thread.start()
    try:
        begun = time.monotonic()
        while not server.started:
            if not thread.is_alive() or time.monotonic() - begun > START_S:
                raise NightshiftError(f"the engine server did not start within {START_S:.0f} s")
            time.sleep(0.01)
        yield held.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        held.close()


def _server(app: Any, port: int) -> tuple[uvicorn.Server, socket.socket]:
    held = socket.socket()
    try:
        held.bind(("127.0.0.1", port))
    except OSError as error:
        held.close()
        raise ConfigError(f"port {port} is taken: set day.port to 0 or to a free one") from error
    config = uvicorn.Config(app, log_level="error", lifespan="on", access_log=False)
    return uvicorn.Server(config), held


def report(r: Resources, today: Today, served: Sequence[Served]) -> None:
    """What the day brought, in one line."""
    solved = sum(item.trajectory.outcome is True for item in served)
    corrected = sum(item.is_corrected for item in served)
    lost = sum(item.trajectory.outcome is None for item in served)
    line = f"day {today.number}: {solved} of {len(served)} customers served by the agent, {corrected} by the operator"
    if lost:
        line += f", {lost} lost to errors"
    r.console.print(f"  {line}; logs in {r.home / 'logs' / r.settings.agent}", highlight=False)

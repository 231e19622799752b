"""A day in small, over real sockets: agent -> proxy -> server -> lines on disk -> reader -> trajectories.

The engine's tokens are bytes, so the exact ids that must come out at the end are the bytes of the texts.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import uvicorn
from starlette.applications import Starlette

from components.capture.proxy import ProxyOptions, make_proxy
from components.capture.sink import JsonlSink
from components.ingestion.openai_chat import OpenAIChat
from components.llm import ChatClient, Endpoint, read_stream, write_message
from components.protocols import Completion, ParsedAction, RawRecord, Sampling
from components.records import Message, ToolCall, Trajectory
from components.rollout.server import make_server

pytestmark = pytest.mark.network
NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
TOOLS = [{"type": "function", "function": {"name": "lookup"}}]


class Bytes:
    """A renderer whose tokens are bytes; `!name arguments` is a call, 0 ends a turn."""

    stop_ids = frozenset({0})

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> tuple[int, ...]:
        wire = [write_message(message) for message in messages]
        return tuple(orjson.dumps([wire, list(tools)]))

    def observation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        raise NotImplementedError

    def completion(self, action: Message) -> tuple[int, ...]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()

    def parse(self, completion_ids: Sequence[int]) -> ParsedAction:
        text = bytes(completion_ids).rstrip(b"\0").decode()
        if not text.startswith("!"):
            return ParsedAction(Message("assistant", text), (), None)
        name, _, arguments = text[1:].partition(" ")
        return ParsedAction(
            Message("assistant", None, (ToolCall("call_0", name, arguments),)), (), None
        )


class Policy:
    """Calls the tool first, then tells its result."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        has_result = b'"role":"tool"' in bytes(prompt_ids)
        ids = tuple(b"It is late.\0" if has_result else b'!lookup {"order": 7}\0')
        return Completion(ids, tuple(-0.125 * place for place in range(len(ids))), "stop", "v9")


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """The app on a free port of this machine; its base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()


async def play(client: ChatClient, conversation: str) -> list[Message]:
    """An agent's loop: ask, run the tool, ask again."""
    headers = {"x-nightshift-agent": "desk", "x-nightshift-conversation": conversation}
    history = [Message("system", "Help."), Message("user", "Where is order 7?")]
    while True:
        reply = await client.chat(history, TOOLS, headers)
        assert "token_ids" not in reply.raw["choices"][0]
        history.append(reply.message)
        if not reply.message.tool_calls:
            return history
        history.append(Message("tool", "late", tool_call_id=reply.message.tool_calls[0].id))


def trajectories(folder: Path) -> dict[str, Trajectory]:
    reader, groups = OpenAIChat(), {}
    for path in folder.glob("desk/*.jsonl"):
        with path.open("rb") as stream:
            for record in reader.read(stream):
                assert isinstance(record, RawRecord), record
                groups.setdefault(record.conversation_id, []).append(record)
    return {name: reader.assemble(records, "desk") for name, records in groups.items()}


async def day(folder: Path) -> list[Message]:
    server = make_server(Policy(), Bytes(), "policy", lambda: NOW)
    async with serving(server) as engine_url:
        options = ProxyOptions(ask_tokens=True)
        proxy = make_proxy(f"{engine_url}/v1", JsonlSink(folder), lambda: NOW, options)
        async with serving(proxy) as url, httpx.AsyncClient(base_url=url) as http:
            endpoint = Endpoint(f"{url}/v1", "policy", options={"max_tokens": 64})
            async with ChatClient(endpoint) as client:
                history, *_ = await asyncio.gather(play(client, "c-1"), play(client, "c-2"))
            body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
            headers = {"x-nightshift-agent": "desk", "x-nightshift-conversation": "c-3"}
            streamed = await http.post("/v1/chat/completions", json=body, headers=headers)
            assert read_stream(streamed.text)["choices"][0]["message"]["tool_calls"]
            await take_over(http)
            health = (await http.get("/healthz")).json()
            assert (health["status"], health["written"]) == ("ok", 7)
    return history


async def take_over(http: httpx.AsyncClient) -> None:
    """A person corrects turn 1 of the second conversation, then says that it failed."""
    told = {"source": "user", "kind": "edit", "turn": 1, "actor": "bob"}
    told["messages"] = [{"role": "assistant", "content": "Sorry, I sent it again."}]
    outcome = {"source": "environment", "kind": "outcome", "score": 0.0}
    for feedback in (told, outcome):
        body = {"agent": "desk", "conversation": "c-2", "feedback": feedback}
        assert (await http.post("/v1/feedback", json=body)).status_code == 200


def test_a_day_leaves_trajectories_with_exact_tokens(tmp_path: Path) -> None:
    history = asyncio.run(day(tmp_path))
    found = trajectories(tmp_path)
    assert sorted(found) == ["c-1", "c-2", "c-3"]
    plain = found["c-1"]
    assert [m.text for m in plain.messages] == [m.text for m in history]
    renderer = Bytes()
    seen = list(history[:2]), list(history[:4])
    for turn, messages, said in zip(
        plain.turns, seen, (b'!lookup {"order": 7}\0', b"It is late.\0"), strict=True
    ):
        assert turn.completion_ids == tuple(said)
        assert turn.prompt_ids == renderer.prompt(messages, TOOLS)
        assert turn.logprobs == tuple(-0.125 * place for place in range(len(said)))
        assert turn.policy_version == "v9"
        assert turn.usage is not None
        assert turn.usage.output_tokens == len(said)
    assert (plain.policy, plain.tools) == ("policy@v9", tuple(TOOLS))

    corrected = found["c-2"]
    assert [turn.executor for turn in corrected.turns] == ["policy", "policy", "human"]
    assert corrected.turns[2].observation == corrected.turns[1].observation
    assert (corrected.outcome, corrected.outcome_source) == (False, "environment")
    assert corrected.stop_reason == "takeover"

    (turn,) = found["c-3"].turns
    assert turn.completion_ids == tuple(b'!lookup {"order": 7}\0')
    assert turn.action.tool_calls == (ToolCall("call_0", "lookup", '{"order": 7}'),)


async def leave_early(folder: Path) -> None:
    """An agent that goes away after the first bytes of a stream."""

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        event = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0.01)

    async with (
        serving(endless) as up,  # pyright: ignore[reportArgumentType]
        serving(make_proxy(f"{up}/v1", JsonlSink(folder), lambda: NOW)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            async for _ in reply.aiter_raw():
                break
        for _ in range(100):
            if list(folder.rglob("*.jsonl")):
                return
            await asyncio.sleep(0.05)
    raise AssertionError("nothing was written while the proxy ran")


def test_an_agent_that_leaves_early_is_written_as_an_error(tmp_path: Path) -> None:
    asyncio.run(leave_early(tmp_path))
    (path,) = tmp_path.rglob("*.jsonl")
    (line,) = [orjson.loads(text) for text in path.read_bytes().splitlines()]
    assert line["error"] == "client left before the end of the stream"
    assert line["response"]["choices"][0]["message"]["content"].startswith("x")

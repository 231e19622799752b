"""The OpenAI endpoint over a tiny renderer (one token per byte) and an engine that answers from a list."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from components.errors import ModelCallError, RecordError
from components.llm import read_message, read_stream
from components.protocols import Completion, ParsedAction, Sampling
from components.records import Message, ToolCall
from components.rollout.server import ServerOptions, make_server, prompt_seed

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ASK = {"messages": [{"role": "user", "content": "hi"}]}


class Bytes:
    """A renderer whose tokens are bytes: `role:text|` per message; `!name arguments` is a call."""

    stop_ids = frozenset({0})

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> tuple[int, ...]:
        if any(message.role == "developer" for message in messages):
            raise RecordError("role 'developer' has no place in this template")
        text = "".join(f"{message.role}:{message.text}|" for message in messages)
        return tuple(f"{len(tools)}{text}".encode())

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
        call = ToolCall("call_0", name, arguments)
        return ParsedAction(Message("assistant", None, (call,)), (), None)


class Listed:
    """An engine that answers from a list; each token has log-probability -1/4."""

    def __init__(self, *texts: str | ModelCallError) -> None:
        self.texts = list(texts)
        self.seen: list[tuple[tuple[int, ...], Sampling]] = []

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        self.seen.append((tuple(prompt_ids), sampling))
        text = self.texts.pop(0)
        if isinstance(text, ModelCallError):
            raise text
        ids = tuple(text.encode())
        return Completion(ids, (-0.25,) * len(ids), "stop" if ids[-1] == 0 else "length", "v4")


def ask(engine: Listed, body: Any, options: ServerOptions | None = None) -> httpx.Response:
    async def run() -> httpx.Response:
        app = make_server(engine, Bytes(), "policy", lambda: NOW, options)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await client.post("/v1/chat/completions", content=content)

    return asyncio.run(run())


def test_an_answer() -> None:
    """Prompt `0user:hi|` is 9 tokens, the answer `yo` and its end are 3."""
    engine = Listed("yo\0")
    body = ask(
        engine, ASK | {"model": "policy", "max_tokens": 9, "temperature": 0.5, "seed": 4}
    ).json()
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "yo"},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert body["usage"] == {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    assert (body["model"], body["policy_version"], body["object"]) == (
        "policy",
        "v4",
        "chat.completion",
    )
    assert body["created"] == int(NOW.timestamp())
    assert "prompt_token_ids" not in body
    assert engine.seen == [(tuple(b"0user:hi|"), Sampling(9, 0.5, 4))]


def test_exact_tokens_on_request() -> None:
    body = ask(Listed("yo\0"), ASK | {"return_token_ids": True, "logprobs": True}).json()
    (choice,) = body["choices"]
    assert body["prompt_token_ids"] == list(b"0user:hi|")
    assert choice["token_ids"] == list(b"yo\0")
    assert [token["logprob"] for token in choice["logprobs"]["content"]] == [-0.25] * 3
    assert [token["token"] for token in choice["logprobs"]["content"]] == ["y", "o", "\0"]


def test_a_tool_call_and_a_cut_off_answer() -> None:
    body = ask(Listed('!find {"n":1}\0'), ASK | {"tools": [{"type": "function"}]}).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert read_message(choice["message"]).tool_calls == (ToolCall("call_0", "find", '{"n":1}'),)
    assert ask(Listed("unfinish"), ASK).json()["choices"][0]["finish_reason"] == "length"


def test_tools_reach_the_prompt_unless_refused() -> None:
    engine = Listed("a\0", "b\0")
    tools = {"tools": [{"type": "function"}]}
    ask(engine, ASK | tools)
    ask(engine, ASK | tools | {"tool_choice": "none"})
    assert [prompt[0] for prompt, _ in engine.seen] == [ord("1"), ord("0")]


def test_without_a_seed_the_prompt_decides() -> None:
    """Same conversation, same seed; another conversation, another seed; defaults: temperature 1, the server's length."""
    engine = Listed("a\0", "a\0", "a\0")
    for text in ("hi", "hi", "ho"):
        ask(engine, {"messages": [{"role": "user", "content": text}]}, ServerOptions(max_tokens=7))
    seeds = [sampling.seed for _, sampling in engine.seen]
    assert seeds[0] == seeds[1] == prompt_seed(engine.seen[0][0]) != seeds[2]
    assert engine.seen[0][1] == Sampling(7, 1.0, seeds[0])


@pytest.mark.parametrize("text", ["yo\0", '!find {"n":1}\0'])
def test_a_stream_spells_out_the_same_answer(text: str) -> None:
    wanted = ASK | {"return_token_ids": True, "logprobs": True}
    whole = ask(Listed(text), wanted).json()
    reply = ask(Listed(text), wanted | {"stream": True, "stream_options": {"include_usage": True}})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text.endswith("data: [DONE]\n\n")
    assert read_stream(reply.text) == whole


@pytest.mark.parametrize(
    ("body", "status", "match"),
    [
        (b"{broken", 400, "JSON"),
        (b"[]", 400, "object"),
        ({}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "banana", "content": "x"}]}, 400, "banana"),
        ({"messages": [{"role": "developer", "content": "x"}]}, 400, "developer"),
        (ASK | {"max_tokens": 0}, 400, "max_tokens"),
        (ASK | {"temperature": -1}, 400, "temperature"),
        (ASK | {"temperature": "hot"}, 400, "temperature"),
        (ASK | {"n": 2}, 400, "n=2"),
        (ASK | {"top_p": 0.5}, 400, "top_p"),
        (ASK | {"stop": ["x"]}, 400, "stop"),
        (ASK | {"tool_choice": "required"}, 400, "tool_choice"),
        (ASK | {"temprature": 1}, 400, "unknown field 'temprature'"),
        (ASK | {"model": "other"}, 404, "'other'"),
        (ASK | {"max_tokens": 92}, 400, "9 tokens and 92"),
        (ASK | {"user": "x" * 3_000}, 413, "larger"),
    ],
)
def test_bad_requests(body: Any, status: int, match: str) -> None:
    """Context of 100: 9 tokens of prompt and 92 to generate are one too many."""
    engine = Listed()
    reply = ask(engine, body, ServerOptions(max_tokens=5, max_context=100, max_body_bytes=2_000))
    assert reply.status_code == status
    assert match in reply.json()["error"]["message"]
    assert engine.seen == []


def test_neutral_fields_are_accepted() -> None:
    neutral = {
        "n": 1,
        "top_p": 1.0,
        "stop": None,
        "presence_penalty": 0,
        "user": "ann",
        "stream": None,
    }
    engine = Listed("a\0")
    assert ask(
        engine,
        ASK | neutral | {"tool_choice": "auto", "max_tokens": 91},
        ServerOptions(max_context=100),
    ).is_success


def test_a_failing_engine_is_a_server_error() -> None:
    reply = ask(Listed(ModelCallError("out of memory")), ASK)
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "engine_error")
    assert "out of memory" in reply.json()["error"]["message"]


def test_the_model_is_listed() -> None:
    async def run() -> Any:
        app = make_server(Listed(), Bytes(), "policy", lambda: NOW)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://e"
        ) as client:
            return (await client.get("/v1/models")).json()

    assert [model["id"] for model in asyncio.run(run())["data"]] == ["policy"]

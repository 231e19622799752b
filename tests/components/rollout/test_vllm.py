"""The vLLM client against a small fake of the server: what it asks, what it understands, what it refuses."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from components.errors import ConfigError, ModelCallError
from components.plugins import make
from components.protocols import Completion, Sampling
from components.rollout.vllm import Vllm, VllmEngine

SETTINGS = Vllm(stop_ids=frozenset({7, 2}), backoff_s=0.0, max_attempts=3)
GOOD = {
    "choices": [
        {
            "token_ids": [11, 12, 7],
            "logprobs": {"token_logprobs": [-0.5, -1.25, -0.01]},
            "finish_reason": "stop",
        }
    ]
}


class FakeServer:
    """Answers completions from a list of (status, body), knows its adapters, remembers what it was asked."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers) or [(200, GOOD)]
        self.asked: list[dict[str, Any]] = []
        self.adapters: dict[str, str] = {}
        app = Starlette(
            routes=[
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
            ]
        )
        self.transport = httpx.ASGITransport(app)

    async def complete(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.asked.append(body)
        if body["model"] not in ("base", *self.adapters):
            return JSONResponse({"error": f"no model {body['model']}"}, 404)
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return JSONResponse(answer, status)

    async def load(self, request: Request) -> JSONResponse:
        body = await request.json()
        if body["lora_name"] in self.adapters:
            return JSONResponse({"error": "already loaded"}, 400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return JSONResponse({})

    async def unload(self, request: Request) -> JSONResponse:
        del self.adapters[(await request.json())["lora_name"]]
        return JSONResponse({})


def with_engine(server: FakeServer, act: Callable[[VllmEngine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        engine = SETTINGS.connect("v0", server.transport)
        try:
            return await act(engine)
        finally:
            await engine.aclose()

    return asyncio.run(main())


def sample(engine: VllmEngine) -> Awaitable[Completion]:
    return engine.sample((4, 5, 6), Sampling(max_tokens=9, temperature=0.7, seed=3))


def test_token_ids_go_in_and_come_out_exactly() -> None:
    server = FakeServer()
    drawn = with_engine(server, sample)
    assert drawn == Completion((11, 12, 7), (-0.5, -1.25, -0.01), "stop", "v0")
    assert server.asked == [
        {
            "model": "base",
            "prompt": [4, 5, 6],
            "max_tokens": 9,
            "temperature": 0.7,
            "seed": 3,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
            "stop_token_ids": [2, 7],
            "skip_special_tokens": False,
        }
    ]


def test_every_version_is_served_under_a_name_of_its_own() -> None:
    server = FakeServer()

    async def act(engine: VllmEngine) -> list[str]:
        versions = [(await sample(engine)).policy_version]
        for version in ("v1", "v2"):
            await engine.load_adapter(Path("/adapters") / version, version)
            versions.append((await sample(engine)).policy_version)
        return versions

    assert with_engine(server, act) == ["v0", "v1", "v2"]
    assert [body["model"] for body in server.asked] == ["base", "policy-v1", "policy-v2"]
    assert server.adapters == {"policy-v2": "/adapters/v2"}


def test_a_version_served_already_is_refused() -> None:
    async def act(engine: VllmEngine) -> None:
        await engine.load_adapter(Path("/a"), "v1")
        await engine.load_adapter(Path("/b"), "v1")

    with pytest.raises(ModelCallError, match="version 'v1' is already served"):
        with_engine(FakeServer(), act)


def test_an_adapter_the_server_refuses_leaves_the_old_version_serving() -> None:
    server = FakeServer()
    server.adapters["policy-v1"] = "/somebody/elses"

    async def act(engine: VllmEngine) -> Completion:
        with pytest.raises(ModelCallError, match="refused with 400"):
            await engine.load_adapter(Path("/a"), "v1")
        return await sample(engine)

    assert with_engine(server, act).policy_version == "v0"


def test_a_busy_server_is_asked_again() -> None:
    server = FakeServer((503, {}), (429, {}), (200, GOOD))
    assert with_engine(server, sample).completion_ids == (11, 12, 7)
    assert len(server.asked) == 3


def test_a_server_that_stays_busy_is_given_up() -> None:
    server = FakeServer((503, {"error": "warming up"}))
    with pytest.raises(ModelCallError, match=r"refused with 503.*warming up"):
        with_engine(server, sample)
    assert len(server.asked) == 3


def test_a_refusal_is_not_repeated() -> None:
    server = FakeServer((400, {"error": "prompt too long"}))
    with pytest.raises(ModelCallError, match=r"refused with 400.*prompt too long"):
        with_engine(server, sample)
    assert len(server.asked) == 1


def test_a_server_that_is_not_there_is_named() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    async def act() -> None:
        engine = SETTINGS.connect("v0", httpx.MockTransport(refuse))
        await sample(engine)

    with pytest.raises(ModelCallError, match=r"127.0.0.1:8000.*attempt 3.*connection refused"):
        asyncio.run(act())


def changed(**fields: Any) -> dict[str, Any]:
    answer = json.loads(json.dumps(GOOD))
    answer["choices"][0].update(fields)
    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"choices": []}, "lacks token ids or log-probabilities"),
        (changed(token_ids=None), "lacks token ids or log-probabilities"),
        (changed(logprobs=None), "lacks token ids or log-probabilities"),
        (changed(token_ids=[11, 12]), "2 token ids with 3 log-probabilities"),
        (changed(finish_reason="abort"), "finish reason 'abort'"),
    ],
)
def test_an_answer_that_could_not_be_trained_on_is_refused(answer: Any, words: str) -> None:
    with pytest.raises(ModelCallError, match=words):
        with_engine(FakeServer((200, answer)), sample)


def test_an_empty_prompt_is_refused_without_a_call() -> None:
    server = FakeServer()
    with pytest.raises(ModelCallError, match="empty"):
        with_engine(server, lambda engine: engine.sample((), Sampling(3)))
    assert server.asked == []


def test_it_is_a_plug_in() -> None:
    assert make("rollout", "vllm", {"url": "http://gpu:8000"}) == Vllm(url="http://gpu:8000")
    with pytest.raises(ConfigError, match="max_attempts"):
        make("rollout", "vllm", {"max_attempts": 0})

"""The recording proxy in process: what passes, what is written, what is refused."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from components.capture.proxy import ProxyOptions, make_proxy

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOKENS = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]}
ANSWER = {
    "id": "x",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ab"},
            "finish_reason": "stop",
            "token_ids": [7, 8],
            "logprobs": TOKENS,
        }
    ],
    "prompt_token_ids": [1, 2, 3],
    "policy_version": "v2",
}


class Memory:
    """A sink that keeps lines, or fails on demand."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.broken = False

    def write(self, line: dict[str, Any]) -> None:
        if self.broken:
            raise OSError("no space")
        self.lines.append(line)


class Upstream:
    """An endpoint that answers from a list and remembers what it was asked."""

    def __init__(self, *answers: httpx.Response | httpx.HTTPError) -> None:
        self.answers = list(answers)
        self.seen: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return answer


Talk = Callable[[httpx.AsyncClient], Awaitable[None]]


def drive(
    upstream: Upstream,
    sink: Memory,
    talk: Talk,
    options: ProxyOptions | None = None,
    host: str = "127.0.0.1",
) -> None:
    async def run() -> None:
        app = make_proxy("http://up/v1/", sink, lambda: NOW, options, httpx.MockTransport(upstream))
        transport = httpx.ASGITransport(app, client=(host, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
            await talk(client)

    asyncio.run(run())


def ask(
    upstream: Upstream, sink: Memory, options: ProxyOptions | None = None, **more: Any
) -> httpx.Response:
    """One call through the proxy."""
    replies: list[httpx.Response] = []

    async def talk(client: httpx.AsyncClient) -> None:
        headers = {"x-nightshift-conversation": "c-1", "x-nightshift-agent": "desk"} | more.pop(
            "headers", {}
        )
        replies.append(
            await client.post("/v1/chat/completions", headers=headers, **({"json": BODY} | more))
        )

    drive(upstream, sink, talk, options)
    return replies[0]


def test_without_asking_bytes_pass_unchanged() -> None:
    """Odd spacing of request and answer survives; the upstream sees authorisation, the record does not."""
    sent, answered = b'{"messages" : [ ],  "model":"m"}', b'{"choices" : [] }'
    upstream, sink = Upstream(httpx.Response(200, content=answered)), Memory()
    headers = {"authorization": "Bearer top-secret", "x-request-id": "r"}
    reply = ask(upstream, sink, content=sent, json=None, headers=headers)
    assert reply.content == answered
    assert upstream.seen[0].content == sent
    assert str(upstream.seen[0].url) == "http://up/v1/chat/completions"
    assert upstream.seen[0].headers["authorization"] == "Bearer top-secret"
    assert "x-nightshift-agent" not in upstream.seen[0].headers
    assert "top-secret" not in json.dumps(sink.lines)


def test_a_call_is_written_with_its_tokens() -> None:
    upstream, sink = Upstream(httpx.Response(200, json=ANSWER)), Memory()
    reply = ask(upstream, sink, ProxyOptions(ask_tokens=True))
    asked = json.loads(upstream.seen[0].content)
    assert asked == BODY | {"logprobs": True, "return_token_ids": True}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "ab"},
        "finish_reason": "stop",
    }
    plain = {"id": "x", "choices": [choice], "policy_version": "v2"}
    assert reply.json() == plain
    (line,) = sink.lines
    assert line.pop("latency_s") >= 0
    assert line == {
        "nightshift": 1,
        "kind": "exchange",
        "agent": "desk",
        "conversation": "c-1",
        "at": "2026-03-01T10:00:00+00:00",
        "request": BODY,
        "response": plain,
        "status": 200,
        "prompt_ids": [1, 2, 3],
        "completion_ids": [7, 8],
        "logprobs": [-0.5, -0.25],
        "policy_version": "v2",
    }


def test_what_the_agent_asked_for_itself_is_passed_back() -> None:
    wanted = BODY | {"logprobs": True}
    upstream, sink = Upstream(httpx.Response(200, json=ANSWER)), Memory()
    reply = ask(upstream, sink, ProxyOptions(ask_tokens=True), json=wanted)
    choice = reply.json()["choices"][0]
    assert choice["logprobs"] == TOKENS
    assert "token_ids" not in choice
    assert sink.lines[0]["request"] == wanted


SSE = (
    b'data: {"id":"x","prompt_token_ids":[1,2],"choices":[{"index":0,"delta":{"role":"assistant","content":"a"},'
    b'"token_ids":[7],"logprobs":{"content":[{"token":"a","logprob":-0.5}]}}]}\n\n'
    b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"b"},"token_ids":[8],"finish_reason":"stop",'
    b'"logprobs":{"content":[{"token":"b","logprob":-0.25}]}}]}\n\n'
    b"data: [DONE]\n\n"
)


class Pieces(httpx.AsyncByteStream):
    """A body that arrives in pieces, perhaps with an end too early."""

    def __init__(self, body: bytes, size: int, error: httpx.HTTPError | None = None) -> None:
        self.body, self.size, self.error = body, size, error

    async def __aiter__(self) -> Any:
        for start in range(0, len(self.body), self.size):
            yield self.body[start : start + self.size]
        if self.error is not None:
            raise self.error


def streamed(
    body: bytes = SSE, size: int = 11, error: httpx.HTTPError | None = None
) -> httpx.Response:
    return httpx.Response(
        200, headers={"content-type": "text/event-stream"}, stream=Pieces(body, size, error)
    )


def test_a_stream_passes_and_is_written_as_one_response() -> None:
    upstream, sink = Upstream(streamed()), Memory()
    reply = ask(upstream, sink, json=BODY | {"stream": True})
    assert reply.content == SSE
    assert reply.headers["content-type"].startswith("text/event-stream")
    (line,) = sink.lines
    assert line["response"]["choices"][0]["message"] == {"role": "assistant", "content": "ab"}
    assert (line["prompt_ids"], line["completion_ids"], line["logprobs"]) == (
        [1, 2],
        [7, 8],
        [-0.5, -0.25],
    )


def test_a_stream_is_stripped_of_what_only_the_proxy_asked_for() -> None:
    upstream, sink = Upstream(streamed()), Memory()
    reply = ask(upstream, sink, ProxyOptions(ask_tokens=True), json=BODY | {"stream": True})
    assert b"token_ids" not in reply.content
    assert b"logprob" not in reply.content
    assert reply.content.count(b"data: ") == 3
    assert reply.content.endswith(b"data: [DONE]\n\n")
    assert sink.lines[0]["completion_ids"] == [7, 8]


def test_an_upstream_that_breaks_off_is_an_error_for_both_sides() -> None:
    upstream, sink = Upstream(streamed(SSE[:60], error=httpx.ReadError("gone"))), Memory()
    reply = ask(upstream, sink, json=BODY | {"stream": True})
    assert b"upstream broke off" in reply.content
    assert sink.lines[0]["error"].startswith("upstream broke off")
    assert "completion_ids" not in sink.lines[0]


def test_errors_pass_untouched_and_are_written() -> None:
    body = {"error": {"message": "wait", "code": "rate_limit"}}
    upstream, sink = (
        Upstream(httpx.Response(429, json=body, headers={"retry-after": "3"})),
        Memory(),
    )
    reply = ask(upstream, sink)
    assert (reply.status_code, reply.json(), reply.headers["retry-after"]) == (429, body, "3")
    assert (sink.lines[0]["status"], sink.lines[0]["error"]) == (429, "rate_limit: wait")
    upstream, sink = Upstream(httpx.Response(502, text="<html>")), Memory()
    assert ask(upstream, sink).text == "<html>"
    assert sink.lines[0]["response"] is None
    upstream, sink = Upstream(httpx.ConnectError("refused")), Memory()
    reply = ask(upstream, sink)
    assert reply.status_code == 502
    assert reply.json()["error"]["type"] == "upstream_error"
    assert sink.lines[0]["error"].startswith("upstream: ")


def test_a_repeated_request_gets_the_first_answer_and_one_line() -> None:
    """Same key, conversation and body: answered once. Another body, or no key: a call of its own."""
    second = ANSWER | {"id": "y"}
    upstream, sink = (
        Upstream(*[httpx.Response(200, json=body) for body in (ANSWER, second, second)]),
        Memory(),
    )
    ids: list[str] = []

    async def talk(client: httpx.AsyncClient) -> None:
        for content, key in ((BODY, "k"), (BODY, "k"), (BODY | {"seed": 1}, "k"), (BODY, None)):
            headers = {"x-nightshift-conversation": "c-1"} | (
                {"idempotency-key": key} if key else {}
            )
            reply = await client.post("/v1/chat/completions", json=content, headers=headers)
            ids.append(reply.json()["id"])

    drive(upstream, sink, talk)
    assert ids == ["x", "x", "y", "y"]
    assert (len(sink.lines), len(upstream.seen)) == (3, 3)


def test_a_failed_answer_is_not_repeated() -> None:
    upstream, sink = (
        Upstream(httpx.Response(503, json={"error": "down"}), httpx.Response(200, json=ANSWER)),
        Memory(),
    )
    statuses: list[int] = []

    async def talk(client: httpx.AsyncClient) -> None:
        for _ in range(2):
            reply = await client.post(
                "/v1/chat/completions", json=BODY, headers={"idempotency-key": "k"}
            )
            statuses.append(reply.status_code)

    drive(upstream, sink, talk)
    assert (statuses, len(sink.lines)) == ([503, 200], 2)


def test_a_failing_sink_never_breaks_serving() -> None:
    upstream, sink = Upstream(*[httpx.Response(200, json=ANSWER) for _ in range(2)]), Memory()
    sink.broken = True

    async def talk(client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200
        health = (await client.get("/healthz")).json()
        assert (health["status"], health["spooled"], health["written"]) == ("degraded", 1, 0)
        assert "no space" in health["last_error"]
        told = {"conversation": "c", "feedback": {"source": "user", "kind": "accept"}}
        assert (await client.post("/v1/feedback", json=told)).json() == {"status": "spooled"}
        sink.broken = False
        assert (await client.get("/healthz")).json()["status"] == "ok"

    drive(upstream, sink, talk)
    assert [line["kind"] for line in sink.lines] == ["exchange", "feedback"]


def test_feedback_is_written() -> None:
    sink = Memory()
    told = {"source": "user", "kind": "outcome", "score": 1.0, "actor": "ann"}

    async def talk(client: httpx.AsyncClient) -> None:
        reply = await client.post(
            "/v1/feedback", json={"conversation": "c-1", "agent": "desk", "feedback": told}
        )
        assert reply.json() == {"status": "recorded"}
        headers = {"x-nightshift-conversation": "c-2"}
        assert (
            await client.post("/v1/feedback", json={"feedback": told}, headers=headers)
        ).status_code == 200

    drive(Upstream(), sink, talk)
    assert [(line["agent"], line["conversation"], line["feedback"]) for line in sink.lines] == [
        ("desk", "c-1", told),
        ("agent", "c-2", told),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"feedback": {"source": "user", "kind": "accept"}},
        {"conversation": "c"},
        {"conversation": "c", "feedback": {"source": "cat", "kind": "accept"}},
        {"conversation": "c", "feedback": {"source": "user", "kind": "accept", "mood": 1}},
        {
            "conversation": "c",
            "feedback": {"source": "user", "kind": "edit", "messages": [{"role": "x"}]},
        },
        {"conversation": "c", "agent": "../up", "feedback": {"source": "user", "kind": "accept"}},
        [],
    ],
)
def test_bad_feedback_is_refused(body: Any) -> None:
    sink = Memory()

    async def talk(client: httpx.AsyncClient) -> None:
        reply = await client.post("/v1/feedback", json=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"]

    drive(Upstream(), sink, talk)
    assert sink.lines == []


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"content": b"{broken", "json": None}, 400),
        ({"json": [1]}, 400),
        ({"headers": {"x-nightshift-agent": "../up"}}, 400),
        ({"headers": {"x-nightshift-conversation": "x" * 201}}, 400),
        ({"json": BODY | {"pad": "x" * 3_000}}, 413),
    ],
)
def test_bad_requests_never_reach_the_upstream(more: dict[str, Any], status: int) -> None:
    upstream, sink = Upstream(), Memory()
    reply = ask(upstream, sink, ProxyOptions(max_body_bytes=2_000), **more)
    assert reply.status_code == status
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert (upstream.seen, sink.lines) == ([], [])


def test_only_this_machine_is_served_unless_allowed() -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        statuses.append((await client.get("/healthz")).status_code)
        statuses.append((await client.post("/v1/feedback", json={})).status_code)

    statuses: list[int] = []
    drive(Upstream(), Memory(), talk, host="10.0.0.9")
    drive(Upstream(), Memory(), talk, ProxyOptions(allow_remote=True), host="10.0.0.9")
    drive(Upstream(), Memory(), talk, host="::1")
    assert statuses == [403, 403, 200, 400, 200, 400]

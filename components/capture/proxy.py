"""The recording proxy: an OpenAI chat endpoint that passes everything on and writes down what was said.

    POST /v1/chat/completions    to `<upstream>/chat/completions` and back, streams chunk by chunk
    POST /v1/feedback            {"conversation": "c-7", "feedback": {"source": "user", "kind": "outcome", "score": 1.0}}
    GET  /healthz                what was written, what waits, what was lost

Headers of the agent: `x-nightshift-conversation` (joins its calls; without it they are joined by content),
`x-nightshift-agent` (the workload; defaults to the proxy's own). Lines, one JSON object each:

    {"nightshift": 1, "kind": "exchange", "agent": "desk", "conversation": "c-7", "at": "2026-03-01T10:00:00+00:00",
     "request": {...}, "response": {...} or null, "status": 200, "latency_s": 0.4, "error": "..." when there is no answer,
     "prompt_ids": [...], "completion_ids": [...], "logprobs": [...], "policy_version": "..." when the engine gave them}
    {"nightshift": 1, "kind": "feedback", "agent": "desk", "conversation": "c-7", "at": "...",
     "feedback": {"source", "kind", "score", "turn", "text", "before", "after", "name", "actor", "messages"}}

`feedback.messages`, with kind `edit`, is what a person did instead from `turn` on: assistant messages with their tool
results. A streamed answer is recorded as the response it spells out.

With `ask_tokens` the proxy adds `logprobs` and `return_token_ids` to requests that lack them and takes `token_ids`,
`prompt_token_ids` and unasked `logprobs` out of what it passes back: the agent sees what it would see without it.
Otherwise bytes pass unchanged. Authorisation headers go upstream and are written nowhere.

A repeated request (same conversation, idempotency key and body) gets the first answer again and is recorded once; while
the first is still being answered both are, and the one that the conversation goes on with counts. A sink that fails never breaks serving (`sink.Spool`). Callers other than this machine are refused unless `allow_remote` is set.
"""

import ipaddress
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from components.capture._lines import Call, exchange_line, feedback_line, strip_tokens
from components.capture.sink import AGENT, Sink, Spool
from components.errors import RecordError
from components.llm import read_error, read_stream
from components.serial import digest

HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "accept-encoding",
        "content-encoding",
    ]
)
MAX_CONVERSATION = 200


@dataclass(frozen=True)
class ProxyOptions:
    agent: str = "agent"
    """The workload of calls that name none."""
    ask_tokens: bool = False
    """Ask the engine for token ids and log-probabilities; set it when the engine is one of ours or vLLM."""
    max_body_bytes: int = 8 * 2**20
    timeout_s: float = 600.0
    """Longest silence of the upstream."""
    allow_remote: bool = False
    """Serve callers on other machines too."""
    max_spooled: int = 10_000
    """Lines kept in memory while the sink fails."""
    max_replays: int = 256
    """Answers kept for repeated requests."""


def make_proxy(
    upstream: str,
    sink: Sink,
    now: Callable[[], datetime],
    options: ProxyOptions | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Starlette:
    """The proxy as an ASGI app. `upstream`: base URL that ends in `/v1`; `now`: aware UTC time."""
    chosen = options or ProxyOptions()
    client = httpx.AsyncClient(transport=transport, timeout=chosen.timeout_s, trust_env=False)
    spool = Spool(sink, chosen.max_spooled)
    proxy = _Proxy(f"{upstream.rstrip('/')}/chat/completions", client, spool, now, chosen)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()
        proxy.spool.flush()

    routes = [
        Route("/v1/chat/completions", proxy.chat, methods=["POST"]),
        Route("/v1/feedback", proxy.feedback, methods=["POST"]),
        Route("/healthz", proxy.health, methods=["GET"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={_Refused: _refuse})


class _Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def _refuse(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, _Refused) else 500
    return _error(status, str(error), "invalid_request_error")


def _error(status: int, message: str, kind: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "code": None}}, status)


class _Proxy:
    def __init__(
        self,
        url: str,
        client: httpx.AsyncClient,
        spool: Spool,
        now: Callable[[], datetime],
        options: ProxyOptions,
    ) -> None:
        self.url = url
        self.client = client
        self.spool = spool
        self.now = now
        self.options = options
        self._answers: OrderedDict[str, tuple[bytes, dict[str, str]]] = OrderedDict()

    async def chat(self, request: Request) -> Response:
        call = await self._call(request)
        if call.repeat_key is not None and call.repeat_key in self._answers:
            content, headers = self._answers[call.repeat_key]
            return Response(content, headers={**headers, "x-nightshift-replayed": "1"})
        sent = orjson.dumps(call.asked) if call.added else call.raw
        headers = [
            (name, value)
            for name, value in request.headers.items()
            if name not in HOP_BY_HOP and not name.startswith("x-nightshift-")
        ]
        headers.append(("accept-encoding", "identity"))
        upstream = self.client.build_request("POST", self.url, content=sent, headers=headers)
        try:
            response = await self.client.send(upstream, stream=True)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                passed = self._stream(call, response)
                return StreamingResponse(passed, response.status_code, _passed_headers(response))
            content = await response.aread()
        except httpx.HTTPError as error:
            self._record(call, 502, None, f"upstream: {error!r}")
            return _error(502, f"upstream {self.url!r} failed: {error!r}", "upstream_error")
        return self._whole(call, response, content)

    async def feedback(self, request: Request) -> Response:
        body = _read_json(await self._read(request))
        agent, conversation = self._names(request)
        agent, conversation = body.get("agent") or agent, body.get("conversation") or conversation
        try:
            line = feedback_line(body, agent, conversation, self.now())
        except RecordError as error:
            raise _Refused(400, str(error)) from error
        self.spool.put(line)
        return JSONResponse({"status": "spooled" if len(self.spool) else "recorded"})

    async def health(self, request: Request) -> Response:
        self._admit(request)
        self.spool.flush()
        return JSONResponse(
            {
                "status": "degraded" if len(self.spool) else "ok",
                "written": self.spool.num_written,
                "spooled": len(self.spool),
                "dropped": self.spool.num_dropped,
                "failures": self.spool.num_failures,
                "last_error": self.spool.last_error,
            }
        )

    # --- a call in -----------------------------------------------------------------------------------------------------

    async def _call(self, request: Request) -> Call:
        raw = await self._read(request)
        body = _read_json(raw)
        agent, conversation = self._names(request)
        wanted = ("logprobs", "return_token_ids") if self.options.ask_tokens else ()
        added = frozenset(name for name in wanted if not body.get(name))
        key = request.headers.get("idempotency-key") or request.headers.get("x-idempotency-key")
        repeat_key = key and digest("\0".join((agent, conversation or "", key, digest(raw))))
        return Call(
            agent, conversation, self.now(), time.perf_counter(), body, raw, added, repeat_key
        )

    def _names(self, request: Request) -> tuple[str, str | None]:
        agent = request.headers.get("x-nightshift-agent") or self.options.agent
        conversation = request.headers.get("x-nightshift-conversation") or None
        if not AGENT.fullmatch(agent):
            raise _Refused(
                400, f"x-nightshift-agent {agent!r}: use up to 64 letters, digits, . _ -"
            )
        if conversation is not None and len(conversation) > MAX_CONVERSATION:
            raise _Refused(400, f"x-nightshift-conversation is longer than {MAX_CONVERSATION}")
        return agent, conversation

    def _admit(self, request: Request) -> None:
        if not self.options.allow_remote and request.client and not _is_local(request.client.host):
            raise _Refused(403, "this proxy serves its own machine only")

    async def _read(self, request: Request) -> bytes:
        self._admit(request)
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self.options.max_body_bytes:
                raise _Refused(413, f"body is larger than {self.options.max_body_bytes} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    # --- an answer out -------------------------------------------------------------------------------------------------

    def _whole(self, call: Call, response: httpx.Response, content: bytes) -> Response:
        status, body = response.status_code, None
        try:
            body = json.loads(content) if content else None
        except ValueError:
            self._record(call, status, None, f"{status}: answer is not JSON: {content[:200]!r}")
        else:
            self._record(call, status, body, read_error(body, status))
        if call.added and isinstance(body, dict):
            content = orjson.dumps(strip_tokens(body, call.added))
        headers = _passed_headers(response)
        self._remember(call, status, content, headers)
        return Response(content, status, headers)

    async def _stream(self, call: Call, response: httpx.Response) -> AsyncIterator[bytes]:
        came, passed, problem = [], [], "client left before the end of the stream"
        try:
            async for piece in _events(response, came, call.added):
                passed.append(piece)
                yield piece
            problem = None
        except httpx.HTTPError as error:
            problem = f"upstream broke off: {error!r}"
            message = {"error": {"message": problem, "type": "upstream_error", "code": None}}
            yield b"data: " + orjson.dumps(message) + b"\n\n"
        finally:
            self._record_stream(call, response, b"".join(came), problem)
            if problem is None:
                content, headers = b"".join(passed), _passed_headers(response)
                self._remember(call, response.status_code, content, headers)
            with anyio.CancelScope(shield=True):
                await response.aclose()

    def _record_stream(
        self, call: Call, response: httpx.Response, came: bytes, problem: str | None
    ) -> None:
        body = None
        try:
            body = read_stream(came.decode("utf-8", "replace"))
            problem = problem or read_error(body, response.status_code)
        except RecordError as error:
            problem = problem or str(error)
        self._record(call, response.status_code, body, problem)

    def _record(self, call: Call, status: int, body: Any, problem: str | None) -> None:
        latency_s = round(time.perf_counter() - call.started, 4)
        self.spool.put(exchange_line(call, status, latency_s, body, problem))

    def _remember(self, call: Call, status: int, content: bytes, headers: dict[str, str]) -> None:
        if call.repeat_key is None or status != 200:
            return
        self._answers[call.repeat_key] = (content, headers)
        while len(self._answers) > self.options.max_replays:
            self._answers.popitem(last=False)


async def _events(
    response: httpx.Response, came: list[bytes], added: frozenset[str]
) -> AsyncIterator[bytes]:
    """The stream as it is passed on; `came` collects it as it arrived."""
    rest = b""
    async for piece in response.aiter_raw():
        came.append(piece)
        if not added:
            yield piece
            continue
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield b"".join(_strip_event(line, added) + b"\n" for line in lines)
    if rest:
        yield _strip_event(rest, added)


def _strip_event(line: bytes, added: frozenset[str]) -> bytes:
    if not line.startswith(b"data:") or b"[DONE]" in line:
        return line
    try:
        return b"data: " + orjson.dumps(strip_tokens(orjson.loads(line[5:]), added))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return line


def _passed_headers(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in HOP_BY_HOP}


def _read_json(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _Refused(400, f"body is {type(body).__name__}, expected an object")
    return body


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

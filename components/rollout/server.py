"""An OpenAI chat endpoint in front of any engine and renderer.

    POST /v1/chat/completions    messages -> renderer.prompt -> engine.sample -> renderer.parse -> message
    GET  /v1/models

The answer is OpenAI's, with three fields of ours: `policy_version` always, and on request (`return_token_ids`, as vLLM has it)
`prompt_token_ids` and `choices[0].token_ids`; `logprobs` gives the behaviour log-probability of each of these tokens. The
engine returns whole completions, so a stream is a few events: the message, the finish reason, the usage when
`stream_options.include_usage` asks for it, `[DONE]`.

Without a seed the seed is derived from the prompt: the same conversation gets the same answer. Fields that would
change the answer and that the engine does not have (`top_p`, `stop`, `n`, penalties, response formats, forced tools) are
refused unless they are neutral; so are unknown fields.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from components.errors import ModelCallError, RecordError
from components.llm import read_message, write_message
from components.protocols import Completion, Engine, Renderer, Sampling
from components.records import Message
from components.serial import digest

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "top_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "stop": ([],),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
}
"""Fields we do not have, and the values at which they change nothing; null is always neutral."""
IGNORED = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
    ]
)


@dataclass(frozen=True)
class ServerOptions:
    max_tokens: int = 256
    """Completion length when the request names none."""
    max_context: int | None = None
    """Longest prompt and completion together, in tokens."""
    max_body_bytes: int = 8 * 2**20


class ChatRequest(BaseModel):
    """What a request may say."""

    model_config = ConfigDict(extra="allow", strict=True)
    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    tools: list[dict[str, Any]] = []
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    logprobs: bool | None = False
    return_token_ids: bool | None = False


@dataclass(frozen=True)
class _Sampled:
    request: ChatRequest
    prompt_ids: tuple[int, ...]
    completion: Completion
    message: Message
    created: int


class _Bad(Exception):
    """A request that cannot be answered."""

    def __init__(self, message: str, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def make_server(
    engine: Engine,
    renderer: Renderer,
    model_name: str,
    now: Callable[[], datetime],
    options: ServerOptions | None = None,
) -> Starlette:
    """The endpoint as an ASGI app that serves one model under one name."""
    server = _Server(engine, renderer, model_name, now, options or ServerOptions())
    routes = [
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/models", server.models, methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {_Bad: _bad, ModelCallError: _failed}
    return Starlette(routes=routes, exception_handlers=handlers)


async def _bad(_: Request, error: Exception) -> Response:
    assert isinstance(error, _Bad), "the handler is registered for bad requests"
    return _error(error.status, str(error), "invalid_request_error", error.code)


async def _failed(_: Request, error: Exception) -> Response:
    return _error(500, str(error), "engine_error", None)


def _error(status: int, message: str, kind: str, code: str | None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "code": code}}, status)


class _Server:
    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        model_name: str,
        now: Callable[[], datetime],
        options: ServerOptions,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.model_name = model_name
        self.now = now
        self.options = options

    async def models(self, _: Request) -> Response:
        model = {"id": self.model_name, "object": "model", "created": 0, "owned_by": "nightshift"}
        return JSONResponse({"object": "list", "data": [model]})

    async def chat(self, request: Request) -> Response:
        asked = self._read(await self._body(request))
        try:
            messages = [read_message(raw) for raw in asked.messages]
            tools = () if asked.model_extra.get("tool_choice") == "none" else asked.tools  # pyright: ignore[reportOptionalMemberAccess]
            prompt_ids = self.renderer.prompt(messages, tools)
        except RecordError as error:
            raise _Bad(str(error)) from error
        sampling = self._sampling(asked, prompt_ids)
        completion = await self.engine.sample(prompt_ids, sampling)
        message = self.renderer.parse(completion.completion_ids).message
        created = int(self.now().timestamp())
        sampled = _Sampled(asked, prompt_ids, completion, message, created)
        if asked.stream:
            return StreamingResponse(self._events(sampled), media_type="text/event-stream")
        return Response(orjson.dumps(self._whole(sampled)), media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self.options.max_body_bytes:
                raise _Bad(f"body is larger than {self.options.max_body_bytes} bytes", status=413)
            pieces.append(piece)
        return b"".join(pieces)

    def _read(self, raw: bytes) -> ChatRequest:
        try:
            asked = ChatRequest.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "body"
            raise _Bad(f"{place}: {first['msg']}") from error
        for name, value in (asked.model_extra or {}).items():
            if name in IGNORED or value is None or value in NEUTRAL.get(name, ()):
                continue
            if name in NEUTRAL:
                raise _Bad(
                    f"{name}={value!r} is not supported, only {NEUTRAL[name]!r}", "unsupported"
                )
            raise _Bad(f"unknown field {name!r}", "unknown_parameter")
        if asked.model not in (None, self.model_name):
            known = f"this server has {self.model_name!r}"
            raise _Bad(f"no model {asked.model!r}; {known}", "model_not_found", 404)
        return asked

    def _sampling(self, asked: ChatRequest, prompt_ids: tuple[int, ...]) -> Sampling:
        max_tokens = asked.max_completion_tokens or asked.max_tokens or self.options.max_tokens
        limit = self.options.max_context
        if limit is not None and len(prompt_ids) + max_tokens > limit:
            raise _Bad(
                f"prompt of {len(prompt_ids)} tokens and {max_tokens} to generate exceed {limit}",
                "context_length_exceeded",
            )
        seed = prompt_seed(prompt_ids) if asked.seed is None else asked.seed
        return Sampling(max_tokens, 1.0 if asked.temperature is None else asked.temperature, seed)

    def _whole(self, sampled: _Sampled) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": write_message(sampled.message),
            "finish_reason": _finish_reason(sampled),
            "logprobs": self._logprobs(sampled),
        }
        body = {**self._head(sampled, "chat.completion"), "choices": [choice]}
        body["usage"] = _usage(sampled)
        if sampled.request.return_token_ids:
            choice["token_ids"] = list(sampled.completion.completion_ids)
            body["prompt_token_ids"] = list(sampled.prompt_ids)
        return body

    async def _events(self, sampled: _Sampled) -> AsyncIterator[bytes]:
        delta = write_message(sampled.message)
        for index, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = index
        first = {"index": 0, "delta": delta, "logprobs": self._logprobs(sampled)}
        head = self._head(sampled, "chat.completion.chunk")
        opening = {**head, "choices": [{**first, "finish_reason": None}]}
        if sampled.request.return_token_ids:
            opening["choices"][0]["token_ids"] = list(sampled.completion.completion_ids)
            opening["prompt_token_ids"] = list(sampled.prompt_ids)
        yield _event(opening)
        ending = {"index": 0, "delta": {}, "finish_reason": _finish_reason(sampled)}
        yield _event({**head, "choices": [ending]})
        if (sampled.request.stream_options or {}).get("include_usage"):
            yield _event({**head, "choices": [], "usage": _usage(sampled)})
        yield b"data: [DONE]\n\n"

    def _head(self, sampled: _Sampled, kind: str) -> dict[str, Any]:
        identity = (sampled.prompt_ids, sampled.completion.completion_ids, sampled.created)
        return {
            "id": f"chatcmpl-{digest(identity)[:24]}",
            "object": kind,
            "created": sampled.created,
            "model": self.model_name,
            "policy_version": sampled.completion.policy_version,
        }

    def _logprobs(self, sampled: _Sampled) -> dict[str, Any] | None:
        if not sampled.request.logprobs:
            return None
        drawn = zip(sampled.completion.completion_ids, sampled.completion.logprobs, strict=True)
        return {"content": [self._token(token, logprob) for token, logprob in drawn]}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.renderer.decode([token]), "logprob": logprob, "top_logprobs": []}


def prompt_seed(prompt_ids: tuple[int, ...]) -> int:
    """The seed of a prompt whose request names none."""
    return int(digest(prompt_ids)[:8], 16)


def _finish_reason(sampled: _Sampled) -> str:
    reason = sampled.completion.finish_reason
    return "tool_calls" if reason == "stop" and sampled.message.tool_calls else reason


def _usage(sampled: _Sampled) -> dict[str, int]:
    given, made = len(sampled.prompt_ids), len(sampled.completion.completion_ids)
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"

"""OpenAI chat completions: the wire form of messages, usage and streams, and a client that speaks it.

The wire form is the one spoken by OpenAI, vLLM and most gateways:

    {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function",
      "function": {"name": "refund_order", "arguments": "{\\"order\\": 7}"}}]}

Arguments stay the text that was emitted; reasoning becomes a content part of type `reasoning`, so it is kept but is not
part of `Message.text`. Streams are merged by one rule: a delta whose tool-call id differs from the latest call of its
index starts a new call, a delta without id continues the latest call of that index.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import httpx
import orjson

from components.errors import ModelCallError, RecordError
from components.records import Message, Role, ToolCall, Usage
from components.serial import digest

ROLES: frozenset[str] = frozenset(get_args(Role))
RETRIED = (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError, httpx.PoolTimeout)


def read_message(raw: Mapping[str, Any], marks: tuple[str, ...] = ()) -> Message:
    """A message from its wire form.

    Raises:
        RecordError: an unknown role, or content that is neither text, parts nor null.
    """
    role, content = raw.get("role"), raw.get("content")
    if len(raw) == 2 and isinstance(content, str) and role in ROLES:
        return Message(role, content, marks=marks)
    if role == "function":
        role = "tool"
    if role not in ROLES:
        raise RecordError(f"message has role {role!r}, expected one of {sorted(ROLES)}")
    if isinstance(content, list):
        content = tuple(_part(part) for part in content)
    elif content is not None and not isinstance(content, str):
        raise RecordError(
            f"content of a {role} message is {type(content).__name__}, expected text, a list of parts or null"
        )
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    if reasoning and isinstance(reasoning, str):
        said = content if isinstance(content, tuple) else ((_part(content),) if content else ())
        content = ({"type": "reasoning", "reasoning": reasoning}, *said)
    if content is None and isinstance(raw.get("refusal"), str):
        content, marks = raw["refusal"], (*marks, "refusal")
    calls = raw.get("tool_calls") or ()
    if not calls and isinstance(raw.get("function_call"), dict):
        calls = ({"function": raw["function_call"]},)
    return Message(
        role=role,
        content=content,
        tool_calls=tuple(read_call(call) for call in calls),
        tool_call_id=_text(raw.get("tool_call_id")),
        name=_text(raw.get("name")),
        marks=marks,
    )


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _part(part: Any) -> dict[str, Any]:
    part = part if isinstance(part, dict) else {"type": "text", "text": str(part)}
    odd = {k: str(part[k]) for k in ("text", "reasoning") if not isinstance(part.get(k) or "", str)}
    return {**part, **odd} if odd else part


def read_call(raw: Any) -> ToolCall:
    """A tool call from its wire form, or from JSON text of it; arguments that are an object become JSON text."""
    if isinstance(raw, str):
        try:
            raw = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise RecordError(f"tool call {raw[:80]!r} is text but not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise RecordError(f"tool call is {type(raw).__name__}, expected an object")
    inner = raw.get("function") or raw.get("custom") or raw
    arguments = inner.get("arguments", inner.get("input", "")) if isinstance(inner, dict) else None
    if arguments is None or not isinstance(inner.get("name") or "", str):
        raise RecordError(f"tool call has no readable function: {str(raw)[:120]!r}")
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    return ToolCall(id=str(raw.get("id") or ""), name=inner.get("name") or "", arguments=arguments)


def write_message(message: Message) -> dict[str, Any]:
    """The wire form of a message."""
    raw: dict[str, Any] = {"role": message.role, "content": message.content}
    if isinstance(message.content, tuple):
        reasoning = "".join(part.get("reasoning") or "" for part in message.content)
        others = [part for part in message.content if part.get("type") != "reasoning"]
        only_text = all(part.get("type") == "text" for part in others)
        raw["content"] = (message.text or None) if reasoning and only_text else others
        if reasoning:
            raw["reasoning_content"] = reasoning
    if message.tool_calls:
        raw["tool_calls"] = [_write_call(call) for call in message.tool_calls]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name}
    return raw | {key: value for key, value in optional.items() if value is not None}


def _write_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def read_usage(raw: Any) -> Usage | None:
    """Token counts with cached tokens inside the input, whoever reports them.

    OpenAI counts cached tokens in `prompt_tokens`; Anthropic reports them beside `input_tokens`, so they are added.
    """
    if not isinstance(raw, Mapping):
        return None
    details = raw.get("prompt_tokens_details") or raw.get("input_tokens_details") or {}
    details = details if isinstance(details, Mapping) else {}
    read = _count(raw.get("cache_read_input_tokens"))
    written = _count(raw.get("cache_creation_input_tokens"))
    total = _count(raw.get("prompt_tokens", raw.get("input_tokens")))
    if "prompt_tokens" not in raw and total is not None:
        total += (read or 0) + (written or 0)
    if read is None:
        read = _count(details.get("cached_tokens", raw.get("prompt_cache_hit_tokens")))
    output = _count(raw.get("completion_tokens", raw.get("output_tokens")))
    return Usage(total, read, output, written)


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def read_error(body: Any, status: int | None = None) -> str | None:
    """Why a response carries no answer, as `code: message`, or None when it carries one."""
    if isinstance(body, dict) and body.get("error"):
        error = body["error"]
        if not isinstance(error, dict):
            return f"{status or 'unknown'}: {error}"
        code = error.get("code") or error.get("type") or status or "unknown"
        return f"{code}: {error.get('message') or error}"
    if isinstance(body, dict) and (choices := body.get("choices")):
        first = choices[0] if isinstance(choices, list) else None
        if isinstance(first, dict) and isinstance(first.get("message"), dict):
            return None
    return f"{status or 'unknown'}: {'no response' if body is None else 'response without answer'}"


def sse_events(body: str) -> Iterator[str]:
    """The data of each server-sent event; comments and other fields are skipped."""
    data: list[str] = []
    for line in [*re.split(r"\r\n|\n|\r", body), ""]:
        if not line and data:
            yield "\n".join(data)
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))


def read_stream(body: str) -> dict[str, Any]:
    """The whole response that a server-sent event stream spells out.

    Raises:
        RecordError: an event is not a JSON object.
    """
    events = [event for event in sse_events(body) if event.strip() != "[DONE]"]
    try:
        return merge_chunks([orjson.loads(event) for event in events])
    except (orjson.JSONDecodeError, AttributeError, TypeError) as error:
        raise RecordError(
            f"stream {body[:80]!r} is not one of completion chunks: {error}"
        ) from error


def merge_chunks(chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One `chat.completion` from its `chat.completion.chunk`s."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        whole |= {key: value for key, value in chunk.items() if value is not None}
        for delta in chunk.get("choices") or ():
            index = delta.get("index") or 0
            empty = {"index": index, "message": {"role": "assistant", "content": None}}
            _merge_choice(choices.setdefault(index, empty), delta)
    for choice in choices.values():
        for call in choice["message"].get("tool_calls", ()):
            del call["index"]
    ordered = [choices[index] for index in sorted(choices)]
    return {**whole, "object": "chat.completion", "choices": ordered}


def _merge_choice(choice: dict[str, Any], chunk: Mapping[str, Any]) -> None:
    if chunk.get("finish_reason") is not None:
        choice["finish_reason"] = chunk["finish_reason"]
    if chunk.get("token_ids"):
        choice.setdefault("token_ids", []).extend(chunk["token_ids"])
    content = (chunk.get("logprobs") or {}).get("content")
    if content:
        choice.setdefault("logprobs", {"content": []})["content"].extend(content)
    message = choice["message"]
    for key, value in (chunk.get("delta") or {}).items():
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for call in value or ():
                _merge_call(calls, call)
        elif key == "role":
            message["role"] = value or message["role"]
        elif isinstance(value, str):
            message[key] = (message.get(key) or "") + value
        elif isinstance(value, list):
            message[key] = [*(message.get(key) or []), *value]


def _merge_call(calls: list[dict[str, Any]], delta: Mapping[str, Any]) -> None:
    index, new_id = delta.get("index") or 0, delta.get("id")
    call = next((call for call in reversed(calls) if call["index"] == index), None)
    if call is None or (new_id and call["id"] and new_id != call["id"]):
        call = {
            "index": index,
            "id": None,
            "type": "function",
            "function": {"name": "", "arguments": ""},
        }
        calls.append(call)
    call["id"] = call["id"] or new_id
    function = delta.get("function") or {}
    call["function"]["name"] = call["function"]["name"] or function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


class ChatReply(NamedTuple):
    message: Message
    usage: Usage | None
    finish_reason: str | None
    raw: dict[str, Any]
    """The whole response body."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is served (base URL, `/v1` included) and how patiently it is asked."""

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    max_tries: int = 4
    """Calls in all; only 429, 5xx and connection failures are tried again."""
    backoff_s: float = 0.5
    """Wait before the second try; doubles each time, plus up to the same again at random."""
    max_in_flight: int = 8
    options: dict[str, Any] = field(default_factory=dict)
    """Further request fields, for example `temperature`, `max_tokens`, `seed`."""

    @property
    def name(self) -> str:
        return f"model {self.model!r} at {self.url!r}"


class ChatClient:
    """A chat model behind HTTP; an async context manager."""

    def __init__(
        self,
        endpoint: Endpoint,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._slots = asyncio.Semaphore(endpoint.max_in_flight)
        key = endpoint.api_key
        self._http = httpx.AsyncClient(
            transport=transport,
            timeout=endpoint.timeout_s,
            headers={"authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
        )

    async def __aenter__(self) -> "ChatClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        """The model's next message. `options` are further request fields of this call.

        Raises:
            ModelCallError: the endpoint refused, or failed `max_tries` times.
        """
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [write_message(message) for message in messages],
            **self.endpoint.options,
            **(options or {}),
        }
        if tools:
            body["tools"] = list(tools)
        async with self._slots:
            response = await self._post(body, dict(headers or {}))
        return _read_reply(response, self.endpoint)

    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        url = f"{self.endpoint.url.rstrip('/')}/chat/completions"
        data = orjson.dumps(body)
        headers.setdefault(
            "idempotency-key", f"{digest(data)[:16]}-{self._rng.getrandbits(64):016x}"
        )
        headers["content-type"] = "application/json"
        for attempt in range(1, self.endpoint.max_tries + 1):
            is_last = attempt == self.endpoint.max_tries
            try:
                response = await self._http.post(url, content=data, headers=headers)
            except httpx.HTTPError as error:
                if is_last or not isinstance(error, RETRIED):
                    raise ModelCallError(
                        f"{self.endpoint.name} gave no answer in {attempt} tries: {error!r}; is it running?"
                    ) from error
                response = None
            status = response.status_code if response is not None else 503
            if response is not None and (is_last or (status != 429 and status < 500)):
                return response
            await self._sleep(self._wait_s(attempt, response))
        raise AssertionError("the last try returns or raises")

    def _wait_s(self, attempt: int, response: httpx.Response | None) -> float:
        asked = (response.headers.get("retry-after") or "") if response is not None else ""
        if asked.isdigit():
            return min(float(asked), 60.0)
        return self.endpoint.backoff_s * 2 ** (attempt - 1) * (1 + self._rng.random())


def _read_reply(response: httpx.Response, endpoint: Endpoint) -> ChatReply:
    status = response.status_code
    try:
        body = orjson.loads(response.content)
        problem = read_error(body, status)
        if problem is not None or status >= 400:
            raise ModelCallError(f"{endpoint.name} answered {status}: {problem}")
        choice = body["choices"][0]
        message = read_message(choice["message"])
    except (orjson.JSONDecodeError, RecordError) as error:
        raise ModelCallError(
            f"{endpoint.name} answered {status} with {response.text[:120]!r}, expected a chat completion: {error}"
        ) from error
    return ChatReply(message, read_usage(body.get("usage")), choice.get("finish_reason"), body)


@dataclass(frozen=True, slots=True)
class Line:
    """One reply of a script."""

    reply: Message | ModelCallError
    expects: str | None = None
    """Text that the last message must contain."""


class ScriptedModel:
    """A chat model that follows a script; an unexpected or further call is an `AssertionError`."""

    def __init__(self, script: Sequence[Line]) -> None:
        self._script = tuple(script)
        self.calls: list[tuple[Message, ...]] = []

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> ChatReply:
        place = len(self.calls)
        self.calls.append(tuple(messages))
        if place >= len(self._script):
            raise AssertionError(f"script of {place} lines is exhausted, got another call")
        line = self._script[place]
        said = messages[-1].text if messages else ""
        if line.expects is not None and line.expects not in said:
            raise AssertionError(f"line {place} expects {line.expects!r}, got {said[:200]!r}")
        if isinstance(line.reply, ModelCallError):
            raise line.reply
        return ChatReply(line.reply, None, "tool_calls" if line.reply.tool_calls else "stop", {})

    def finish(self) -> None:
        """Fail unless the whole script was played."""
        if len(self.calls) < len(self._script):
            raise AssertionError(f"only {len(self.calls)} of {len(self._script)} lines were played")

"""What a span says about a model call: messages, answer, tools, in the three ways that GenAI conventions had.

    attributes   gen_ai.input.messages, gen_ai.output.messages, gen_ai.system_instructions, gen_ai.tool.definitions:
                 JSON text (or plain data) of [{"role", "parts": [{"type": "text", "content"}, {"type": "tool_call", "id",
                 "name", "arguments"}, {"type": "tool_call_response", "id", "response"}], "finish_reason"}]
    events       gen_ai.system.message, gen_ai.user.message, gen_ai.assistant.message, gen_ai.tool.message, gen_ai.choice;
                 the attributes of gen_ai.client.inference.operation.details are read like the span's own
    indexed      gen_ai.prompt.0.role, gen_ai.prompt.0.content, gen_ai.completion.0.tool_calls.0.name, ...

Argument objects become compact JSON text; argument text stays as it is.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from components.errors import RecordError
from components.ingestion._conversation import mark
from components.ingestion._spans import Span
from components.llm import read_message
from components.records import Message, Role, Usage

DETAILS = "gen_ai.client.inference.operation.details"
EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
INDEXED = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(.+)")
INDEXED_CALL = re.compile(r"tool_calls\.(\d+)\.(id|name|arguments)")
MODEL_ROLES = {"model": "assistant", "human": "user", "ai": "assistant"}


def read_messages(span: Span) -> tuple[list[Message], Message | None]:
    """What the model was given, and its answer; `([], None)` when the content was not captured.

    Raises:
        RecordError: the content is there but unreadable.
    """
    attributes = dict(span.attributes)
    for name, extra in span.events:
        if name == DETAILS:
            attributes |= extra
    try:
        if "gen_ai.input.messages" in attributes or "gen_ai.output.messages" in attributes:
            return _from_attributes(attributes)
        given, said = _from_events(span.events)
        return (given, said) if given or said else _from_indexed(attributes)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise RecordError(f"unreadable messages of span {span.id}: {error!r}") from error


def _from_attributes(attributes: Mapping[str, Any]) -> tuple[list[Message], Message | None]:
    given: list[Message] = []
    instructions = _data(attributes.get("gen_ai.system_instructions"))
    if instructions:
        given += _messages({"role": "system", "parts": _as_parts(instructions)})
    for raw in _as_list(_data(attributes.get("gen_ai.input.messages"))):
        given += _messages(raw)
    outputs = _as_list(_data(attributes.get("gen_ai.output.messages")))
    said = [m for raw in outputs[:1] for m in _messages({"role": "assistant", **raw})]
    if said and len(outputs) > 1:
        return given, mark(said[0], f"first of {len(outputs)} choices")
    return given, said[0] if said else None


def _messages(raw: Mapping[str, Any]) -> Iterable[Message]:
    """A message with parts; several tool results in one message become one message each."""
    role = MODEL_ROLES.get(raw.get("role", ""), raw.get("role"))
    if "parts" not in raw:
        return [read_message({**raw, "role": role})]
    texts, calls, results = [], [], []
    for part in _as_parts(raw["parts"]):
        kind = part.get("type") or ("text" if "text" in part or "content" in part else "")
        if kind == "tool_call":
            calls.append(part)
        elif kind == "tool_call_response":
            content = part.get("response", part.get("result", ""))
            text = content if isinstance(content, str) else orjson.dumps(content).decode()
            results.append(Message("tool", text, tool_call_id=part.get("id")))
        elif kind == "reasoning" or part.get("thought"):
            texts.append({"type": "reasoning", "reasoning": part.get("content", part.get("text"))})
        elif kind == "text":
            texts.append({"type": "text", "text": part.get("content", part.get("text")) or ""})
        else:
            texts.append(dict(part))
    if results and not (texts or calls):
        return results
    content = texts[0]["text"] if len(texts) == 1 and texts[0].get("type") == "text" else texts
    said = read_message({"role": role, "content": content or None, "tool_calls": calls})
    return [*results, said]


def _from_events(
    events: Iterable[tuple[str, Mapping[str, Any]]],
) -> tuple[list[Message], Message | None]:
    given: list[Message] = []
    said: Message | None = None
    for name, attributes in events:
        if name == "gen_ai.choice" and said is None:
            inner = _data(attributes.get("message")) or attributes
            said = read_message({"role": "assistant", **_event_body(inner)})
        elif name in EVENT_ROLES:
            given.append(read_message({"role": EVENT_ROLES[name], **_event_body(attributes)}))
    return given, said


def _event_body(attributes: Mapping[str, Any]) -> dict[str, Any]:
    body = {
        key: _data(value) if key == "tool_calls" else value for key, value in attributes.items()
    }
    content = body.get("content")
    if content is not None and not isinstance(content, str | list):
        body["content"] = orjson.dumps(content).decode()
    wanted = ("content", "tool_calls", "name", "tool_call_id")
    known = {key: body[key] for key in wanted if body.get(key) is not None}
    return known if "tool_call_id" in known else {**known, "tool_call_id": body.get("id")}


def _from_indexed(attributes: Mapping[str, Any]) -> tuple[list[Message], Message | None]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for key, value in attributes.items():
        match = INDEXED.fullmatch(key)
        if match is None:
            continue
        raw = found.setdefault((match[1], int(match[2])), {"tool_calls": {}})
        call = INDEXED_CALL.fullmatch(match[3])
        if call is None:
            raw[match[3]] = value
        else:
            raw["tool_calls"].setdefault(int(call[1]), {})[call[2]] = value
    messages: dict[str, list[Message]] = {"prompt": [], "completion": []}
    for (side, _), raw in sorted(found.items()):
        calls = [raw["tool_calls"][place] for place in sorted(raw["tool_calls"])]
        role: Role = raw.get("role") or ("user" if side == "prompt" else "assistant")
        messages[side].append(read_message({**raw, "role": role, "tool_calls": calls}))
    return messages["prompt"], next(iter(messages["completion"]), None)


def read_usage(attributes: Mapping[str, Any]) -> Usage | None:
    """Token counts; the convention's input tokens already contain the cached ones."""
    prefix = "gen_ai.usage."
    used = {k[len(prefix) :]: v for k, v in attributes.items() if k.startswith(prefix)}
    counts = [
        used.get("input_tokens", used.get("prompt_tokens")),
        used.get("cache_read.input_tokens", used.get("cache_read_input_tokens")),
        used.get("output_tokens", used.get("completion_tokens")),
        used.get("cache_creation.input_tokens", used.get("cache_creation_input_tokens")),
    ]
    known = [int(count) if isinstance(count, int | float) else None for count in counts]
    return Usage(*known) if any(count is not None for count in known) else None


def read_tools(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Tool definitions in OpenAI function form."""
    tools = []
    for raw in _as_list(_data(attributes.get("gen_ai.tool.definitions"))):
        if isinstance(raw, dict):
            inner = {key: value for key, value in raw.items() if key != "type"}
            tools.append(raw if "function" in raw else {"type": "function", "function": inner})
    return tuple(tools)


def _data(value: Any) -> Any:
    """JSON text as data; other text and data as they are."""
    if isinstance(value, str):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _as_list(value: Any) -> list[Any]:
    if value is None or isinstance(value, str):
        return []
    return value if isinstance(value, list) else [value]


def _as_parts(value: Any) -> list[dict[str, Any]]:
    items = value if isinstance(value, list) else [value]
    return [part if isinstance(part, dict) else {"type": "text", "content": part} for part in items]

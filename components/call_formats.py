"""How tool calls, tool results and tool lists are written as text, and read back.

`compact`, for small models: a call is one line `name {"argument": "value"}`, several calls are several lines, every
other line is reply text; tools are listed as `name(argument, argument)`; a result is a message of the role `tool`.

`hermes`, what Qwen is trained on: a call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, results stand
in `<tool_response>` inside one user message, tools are listed as JSON schemas.

Reading repairs nothing: a call that is no valid JSON keeps the text as emitted, with the problem beside it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from components.records import ToolCall

COMPACT_CALL = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*(\{.*)")
COMPACT_TOOLS = 'Tools, one call per line as name {"argument": "value"}:'
HERMES_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
HERMES_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
HERMES_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')
HERMES_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>",
)


class RawCall(NamedTuple):
    name: str
    arguments: str
    """As emitted."""
    problem: str | None = None


class Span(NamedTuple):
    """Characters of a completion that are one call, or reply text."""

    start: int
    end: int
    call: RawCall | None


class CallFormat(Protocol):
    def tools_text(self, functions: Sequence[dict[str, Any]]) -> str:
        """The list of tools for the system message."""
        ...

    def call_text(self, call: ToolCall) -> str: ...

    def result_blocks(self, results: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Adjacent tool results as (role, text) of framed messages."""
        ...

    def spans(self, text: str) -> Iterator[Span]:
        """A completion cut into calls and reply text."""
        ...


def _arguments_text(call: ToolCall) -> str:
    """Object text in the order emitted, never a quoted string; what is no object stays as it is."""
    parsed = call.parsed
    return call.arguments if parsed is None else json.dumps(parsed, ensure_ascii=False)


class CompactCalls:
    def tools_text(self, functions: Sequence[dict[str, Any]]) -> str:
        lines = [f"{each['name']}({', '.join(_argument_names(each))})" for each in functions]
        return "\n".join([COMPACT_TOOLS, *lines])

    def call_text(self, call: ToolCall) -> str:
        return f"{call.name} {_arguments_text(call)}"

    def result_blocks(self, results: Sequence[str]) -> Iterator[tuple[str, str]]:
        return (("tool", result) for result in results)

    def spans(self, text: str) -> Iterator[Span]:
        end = 0
        reply_from: int | None = None
        for line in text.split("\n"):
            start, end = end, end + len(line) + 1
            found = COMPACT_CALL.fullmatch(line.strip())
            if found is None:
                reply_from = start if reply_from is None else reply_from
                continue
            if reply_from is not None:
                yield Span(reply_from, start, None)
                reply_from = None
            yield Span(start, min(end, len(text)), RawCall(found[1], found[2]))
        if reply_from is not None and reply_from < len(text):
            yield Span(reply_from, len(text), None)


def _argument_names(function: dict[str, Any]) -> list[str]:
    return list((function.get("parameters") or {}).get("properties") or {})


class HermesCalls:
    def tools_text(self, functions: Sequence[dict[str, Any]]) -> str:
        schemas = [
            json.dumps({"type": "function", "function": each}, ensure_ascii=False)
            for each in functions
        ]
        return "\n".join(schemas).join(HERMES_TOOLS)

    def call_text(self, call: ToolCall) -> str:
        name = json.dumps(call.name, ensure_ascii=False)
        body = f'{{"name": {name}, "arguments": {_arguments_text(call)}}}'
        return f"<tool_call>\n{body}\n</tool_call>"

    def result_blocks(self, results: Sequence[str]) -> Iterator[tuple[str, str]]:
        yield "user", "\n".join(f"<tool_response>\n{each}\n</tool_response>" for each in results)

    def spans(self, text: str) -> Iterator[Span]:
        place = 0
        for found in HERMES_CALL.finditer(text):
            if text[place : found.start()].strip():
                yield Span(place, found.start(), None)
            yield Span(found.start(), found.end(), _hermes_call(found[1].strip()))
            place = found.end()
        if text[place:].strip():
            yield Span(place, len(text), None)


def _hermes_call(body: str) -> RawCall:
    name = HERMES_NAME.search(body)
    try:
        value = json.loads(body)
    except ValueError as error:
        return RawCall(name[1] if name else "", body, f"invalid call: {error}")
    place = HERMES_ARGUMENTS.search(body)
    if not (isinstance(value, dict) and isinstance(value.get("name"), str) and place):
        return RawCall("", body, "invalid call: expected an object with a name and arguments")
    _, end = json.JSONDecoder().raw_decode(body, place.end())
    return RawCall(value["name"], body[place.end() : end])

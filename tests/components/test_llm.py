"""The wire form of messages, usage and streams; the client's retries; the scripted model."""

import asyncio
from random import Random

import httpx
import orjson
import pytest

from components.errors import ModelCallError, RecordError
from components.llm import (
    ChatClient,
    Endpoint,
    Line,
    ScriptedModel,
    merge_chunks,
    read_error,
    read_message,
    read_stream,
    read_usage,
    sse_events,
    write_message,
)
from components.records import Message, ToolCall


def test_arguments_stay_as_emitted() -> None:
    """Spaces, an unfinished object and three glued objects are the model's own text; nothing is repaired."""
    for text in ('{ "a":1}', '{"city": "Par', '{"a":1}{"b":2}', "", "  "):
        raw = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": text}}],
        }
        message = read_message(raw)
        assert message.tool_calls == (ToolCall("c", "f", text),)
        assert write_message(message)["tool_calls"][0]["function"]["arguments"] == text


def test_arguments_as_an_object_become_text() -> None:
    call = {"id": 7, "name": "f", "arguments": {"a": 1}}
    assert read_message({"role": "assistant", "tool_calls": [call]}).tool_calls == (
        ToolCall("7", "f", '{"a":1}'),
    )


def test_a_call_that_is_json_text() -> None:
    text = '{"id": "c", "function": {"name": "f", "arguments": "{}"}}'
    message = read_message({"role": "assistant", "tool_calls": [text]})
    assert message.tool_calls == (ToolCall("c", "f", "{}"),)
    with pytest.raises(RecordError, match="not JSON"):
        read_message({"role": "assistant", "tool_calls": ["no"]})


def test_roles() -> None:
    """`developer` keeps its role, the old `function` is a tool, anything else is an error that names it."""
    assert read_message({"role": "developer", "content": "x"}).role == "developer"
    assert read_message({"role": "function", "name": "f", "content": "x"}).role == "tool"
    with pytest.raises(RecordError, match="'banana'"):
        read_message({"role": "banana", "content": "x"})
    with pytest.raises(RecordError, match="int"):
        read_message({"role": "user", "content": 3})


def test_reasoning_is_kept_beside_the_text() -> None:
    message = read_message({"role": "assistant", "content": "4", "reasoning_content": "2+2"})
    assert message.text == "4"
    assert write_message(message) == {
        "role": "assistant",
        "content": "4",
        "reasoning_content": "2+2",
    }


def test_refusal_is_the_text() -> None:
    message = read_message({"role": "assistant", "content": None, "refusal": "I will not."})
    assert message.text == "I will not."
    assert message.marks == ("refusal",)


def test_usage_of_four_providers() -> None:
    """Total input with cached tokens inside.

    OpenAI counts them in: 900 of which 800 read. Anthropic reports beside: 5 + 800 + 95 = 900. No usage: unknown, not 0.
    Uncached = total - read - written: 100, 5.
    """
    openai = read_usage({"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 800}})
    assert openai is not None
    assert (openai.input_tokens, openai.cached_tokens, openai.output_tokens) == (900, 800, None)
    beside = {
        "input_tokens": 5,
        "cache_read_input_tokens": 800,
        "cache_creation_input_tokens": 95,
        "output_tokens": 7,
    }
    anthropic = read_usage(beside)
    assert anthropic is not None
    assert (anthropic.input_tokens, anthropic.cached_tokens) == (900, 800)
    assert (anthropic.cache_written_tokens, anthropic.output_tokens) == (95, 7)
    assert read_usage(None) is None
    empty = read_usage({})
    assert empty is not None
    assert empty.input_tokens is None


def test_errors_are_told_apart_from_answers() -> None:
    assert read_error({"choices": [{"message": {"role": "assistant"}}]}) is None
    assert read_error({"choices": None, "error": {"message": "m", "code": 400}}) == "400: m"
    assert read_error({"error": {"message": "m", "type": "t"}}) == "t: m"
    assert read_error({"error": "down"}, 503) == "503: down"
    assert read_error(None) == "unknown: no response"
    assert read_error({"choices": []}) == "unknown: response without answer"
    assert read_error([]) == "unknown: response without answer"


def _call(index: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, object]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    call = {"index": index, "function": function} | ({"id": call_id} if call_id else {})
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


def test_same_index_with_another_id_is_another_call() -> None:
    """Two parallel calls that a gateway labels with one index; the second comes in two pieces."""
    whole = merge_chunks(
        [
            _call(0, "k1", "open", '{"p":1}'),
            _call(0, "k2", "open", '{"p'),
            _call(0, None, None, '":2}'),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        ]
    )
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert read_message(choice["message"]).tool_calls == (
        ToolCall("k1", "open", '{"p":1}'),
        ToolCall("k2", "open", '{"p":2}'),
    )


def test_interleaved_indices() -> None:
    whole = merge_chunks(
        [
            _call(0, "a", "f", "1"),
            _call(1, "b", "g", "2"),
            _call(0, None, None, "3"),
            _call(1, "b", None, "4"),
        ]
    )
    calls = read_message(whole["choices"][0]["message"]).tool_calls
    assert calls == (ToolCall("a", "f", "13"), ToolCall("b", "g", "24"))


def test_a_stream_spells_out_a_response() -> None:
    body = (
        ": comment\n\n"
        'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"}}]}\n\n'
        'data: {"id":"x","choices":[{"index":0,"delta":{"content":"lo\u2028"},"finish_reason":"stop",'
        '"logprobs":{"content":[{"token":"lo","logprob":-0.5}]},"token_ids":[4]}]}\r\n\r\n'
        'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3}}\n\n'
        "data: [DONE]\n\n"
    )
    whole = read_stream(body)
    choice = whole["choices"][0]
    assert choice["message"]["content"] == "Hello\u2028"
    assert (choice["finish_reason"], choice["token_ids"]) == ("stop", [4])
    assert choice["logprobs"]["content"] == [{"token": "lo", "logprob": -0.5}]
    assert whole["usage"] == {"prompt_tokens": 3}
    assert list(sse_events("data: a\ndata: b\n\ndata: c")) == ["a\nb", "c"]
    with pytest.raises(RecordError, match="not one of completion chunks"):
        read_stream("data: {broken\n\n")


ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]
}


def _ask(answers: list[httpx.Response | httpx.HTTPError], max_tries: int = 3) -> tuple[str, list]:
    """The text answered, and the waits between the tries."""
    waits: list[float] = []
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        reply = answers[len(seen) - 1]
        if isinstance(reply, httpx.HTTPError):
            raise reply
        return reply

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def run() -> str:
        endpoint = Endpoint(
            "http://model/v1", "m", api_key="secret", max_tries=max_tries, backoff_s=1
        )
        transport = httpx.MockTransport(answer)
        async with ChatClient(endpoint, transport, sleep, Random(0)) as client:
            assert "secret" not in repr(endpoint)
            reply = await client.chat([Message("user", "hi")])
            return reply.message.text

    text = asyncio.run(run())
    assert len({request.headers["idempotency-key"] for request in seen}) == 1
    assert orjson.loads(seen[0].content)["messages"] == [{"role": "user", "content": "hi"}]
    return text, waits


def test_busy_and_broken_servers_are_asked_again() -> None:
    """Back-off: 1 s, then 2 s, each plus up to the same again; `retry-after` is obeyed instead."""
    text, waits = _ask(
        [httpx.Response(503), httpx.ConnectError("no"), httpx.Response(200, json=ANSWER)]
    )
    assert text == "yes"
    assert 1 <= waits[0] <= 2 <= waits[1] <= 4
    _, waits = _ask(
        [httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(200, json=ANSWER)]
    )
    assert waits == [7.0]


@pytest.mark.parametrize(
    ("answers", "match"),
    [
        ([httpx.Response(400, json={"error": {"message": "bad", "code": "c"}})], "400: c: bad"),
        ([httpx.Response(200, json={"error": {"message": "late"}})], "late"),
        ([httpx.Response(200, text="<html>")], "expected a chat completion"),
        ([httpx.ReadTimeout("slow")], "slow"),
        ([httpx.Response(500, json={})] * 3, "500"),
        ([httpx.ConnectError("no")] * 3, "3 tries"),
    ],
)
def test_other_failures_are_errors(answers: list, match: str) -> None:
    with pytest.raises(ModelCallError, match=match):
        _ask(answers)


def test_scripted_model() -> None:
    hello = Message("assistant", "hello")
    model = ScriptedModel([Line(hello, expects="hi"), Line(ModelCallError("down"))])
    asked = [Message("user", "hi there")]

    async def run() -> None:
        assert (await model.chat(asked)).message == hello
        with pytest.raises(AssertionError, match="1 of 2"):
            model.finish()
        with pytest.raises(ModelCallError, match="down"):
            await model.chat(asked)
        model.finish()
        with pytest.raises(AssertionError, match="exhausted"):
            await model.chat(asked)
        with pytest.raises(AssertionError, match="expects 'bye'"):
            await ScriptedModel([Line(hello, expects="bye")]).chat(asked)

    asyncio.run(run())
    assert model.calls[0] == tuple(asked)

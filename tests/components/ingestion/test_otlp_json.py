"""OTLP/JSON traces: ids, integers, late parents, duplicates, clocks, and messages in three conventions."""

import base64
import itertools
from collections import Counter
from typing import Any

import orjson
import pytest

from components.ingestion._spans import Span, merge, read_attributes, read_span
from components.ingestion.otlp_json import OtlpJson
from components.protocols import RawRecord, Rejected
from components.records import ToolCall, Usage

from .logs import conversations, jsonl, one, read, real, records_of

READER = OtlpJson()
TRACE = "0af7651916cd43dd8448eb211c80319c"
SECOND = 1_000_000_000


def attribute(key: str, value: Any) -> dict[str, Any]:
    kinds: list[tuple[type, str]] = [
        (bool, "boolValue"),
        (str, "stringValue"),
        (float, "doubleValue"),
    ]
    for kind, name in kinds:
        if isinstance(value, kind):
            return {"key": key, "value": {name: value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    return {"key": key, "value": {"stringValue": orjson.dumps(value).decode()}}


def span(
    number: int, parent: int | None = None, start: float = 0, end: float = 1, **more: Any
) -> dict[str, Any]:
    attributes = more.pop("attributes", {})
    return {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "parentSpanId": "" if parent is None else f"{parent:016x}",
        "name": "agent",
        "startTimeUnixNano": str(int((1_000 + start) * SECOND)),
        "endTimeUnixNano": str(int((1_000 + end) * SECOND)),
        "attributes": [attribute(key, value) for key, value in attributes.items()],
    } | more


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {
        "attributes": [attribute("service.name", "bot"), attribute("service.version", "1.2")]
    }
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


def chat(
    number: int, given: list[Any], answer: Any, start: float = 0, **more: Any
) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": given}
    if answer is not None:
        attributes["gen_ai.output.messages"] = [answer]
    attributes |= more.pop("attributes", {})
    return span(number, 1, start, start + 1, name="chat m", attributes=attributes, **more)


def text(role: str, words: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": words}]}


ASK = text("user", "weather in Rome?")
CALL = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "w", "name": "weather", "arguments": {"city": "Rome"}}],
}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "w", "response": "22 C"}]}
REPLY = text("assistant", "22 degrees.")


def tree(spans: list[dict[str, Any]]) -> Any:
    return merge([read_span(r.payload, r.id) for r in records_of(READER, jsonl(export(*spans)))])


# --- spans ------------------------------------------------------------------------------------------------------------


def test_integers_as_text_and_nanoseconds() -> None:
    """End - start = 2000000000000000007 - 1999999999999999999 = 8 ns: floats would give 0 or 256."""
    raw = {
        "traceId": TRACE,
        "spanId": "00000000000000aa",
        "name": "chat",
        "startTimeUnixNano": "1999999999999999999",
        "endTimeUnixNano": "2000000000000000007",
        "someFutureField": {"x": 1},
        "attributes": [
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "31"}},
            {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 9}},
            {
                "key": "gen_ai.response.finish_reasons",
                "value": {"arrayValue": {"values": [{"stringValue": "stop"}]}},
            },
        ],
    }
    (record,) = records_of(READER, jsonl(export(raw)))
    assert read_span(record.payload).duration_ns == 8
    t = one(READER, jsonl(export(raw)))
    (turn,) = t.turns
    assert turn.usage == Usage(31, None, 9)
    assert (turn.finish_reason, turn.latency_s) == ("stop", 8e-9)
    assert turn.action.marks == ("content not captured",)


def test_cached_tokens_are_already_inside() -> None:
    attributes = {
        "gen_ai.usage.input_tokens": 900,
        "gen_ai.usage.cache_read.input_tokens": 800,
        "gen_ai.usage.cache_creation.input_tokens": 95,
        "gen_ai.usage.output_tokens": 7,
    }
    t = one(READER, jsonl(export(chat(2, [ASK], REPLY, attributes=attributes))))
    assert t.turns[0].usage == Usage(900, 800, 7, 95)


def test_values_of_every_kind() -> None:
    raw = [
        {"key": "b", "value": {"boolValue": False}},
        {"key": "d", "value": {"doubleValue": 0.5}},
        {
            "key": "kv",
            "value": {"kvlistValue": {"values": [{"key": "x", "value": {"intValue": "1"}}]}},
        },
        {"key": "list", "value": {"arrayValue": {}}},
        {"key": "none", "value": {}},
    ]
    assert read_attributes(raw) == {"b": False, "d": 0.5, "kv": {"x": 1}, "list": [], "none": None}


def test_hex_in_both_cases_and_base64_are_one_trace() -> None:
    def encoded(hexadecimal: str) -> str:
        return base64.b64encode(bytes.fromhex(hexadecimal)).decode()

    lower = span(1)
    upper = span(2, 1, traceId=TRACE.upper(), spanId="00000000000000B7")
    other = span(
        3,
        traceId=encoded(TRACE),
        spanId=encoded("00f067aa0ba902b8"),
        parentSpanId=encoded(f"{1:016x}"),
    )
    records = records_of(READER, jsonl(export(lower), export(upper), export(other)))
    assert {record.conversation_id for record in records} == {TRACE}
    last = read_span(records[2].payload)
    assert (last.id, last.parent_id) == ("00f067aa0ba902b8", f"{1:016x}")
    assert read_span(records[1].payload).id == "00000000000000b7"


@pytest.mark.parametrize(
    "ids",
    [
        {"traceId": "0" * 32},
        {"spanId": "0" * 16},
        {"traceId": ""},
        {"traceId": "xyz"},
        {"spanId": TRACE},
        {"traceId": 5},
    ],
)
def test_bad_ids_are_rejected_alone(ids: dict[str, Any]) -> None:
    bad, good = read(READER, jsonl(export(span(1, **ids), span(2))))
    assert isinstance(bad, Rejected)
    assert "id" in bad.reason
    assert isinstance(good, RawRecord)


def test_late_and_missing_parents() -> None:
    """a > b > c arrives as c, then a with an orphan's tree (z has a parent that never comes), then b.

    After the first batch c is a root of its own; in the end one root, whatever the order of the batches.
    """
    batches = [[span(0xC, 0xB)], [span(0xA)], [span(0xB, 0xA)]]
    assert tree(batches[0]).roots == (f"{0xC:016x}",)
    for order in itertools.permutations(batches):
        whole = tree([item for batch in order for item in batch])
        assert (whole.roots, len(whole.spans)) == ((f"{0xA:016x}",), 3)
    lost = tree([span(0xF, 0xE), span(0x10, 0xF)])
    assert (lost.roots, len(lost.spans)) == ((f"{0xF:016x}",), 2)


def test_root_alone_speaks_for_its_trace() -> None:
    """No call of the trace carries words: first input and last output are the root's."""
    root = span(
        1,
        9,
        attributes={"gen_ai.input.messages": [ASK], "gen_ai.output.messages": [REPLY]},
        name="invoke_agent x",
    )
    silent = span(2, 1, name="chat m")
    t = one(READER, jsonl(export(root, silent)))
    assert [m.text for m in t.messages] == ["weather in Rome?", "22 degrees."]


def test_duplicates_and_conflicts() -> None:
    """s1 twice the same, s2 in two versions (the one that ends at 25 counts), and s1 of another trace: 3 spans."""
    other = "1" * 32
    data = jsonl(
        export(span(1, start=10, end=20)),
        export(span(1, start=10, end=20)),
        export(span(2, start=21, end=22, status={"code": 2})),
        export(span(2, start=20, end=25)),
        export(span(1, traceId=other)),
    )
    records = records_of(READER, data)
    assert len({record.id for record in records}) == 4
    mine = [record for record in records if record.conversation_id == TRACE]
    whole = merge([read_span(record.payload, record.id) for record in mine])
    kept: Span = whole.spans[f"{2:016x}"]
    assert (len(whole.spans), kept.error, whole.attempts) == (2, None, {f"{2:016x}": 1})
    made = conversations(READER, records)
    assert [t.marks for t in made] == [("conflict: 1 other versions",), ()]


def test_clock_skew() -> None:
    """Children of a (0 to 8 s): b starts before it, c ends before it starts, d lies five years ahead."""
    years = 5 * 365 * 86_400
    spans = [
        span(1, start=0, end=8),
        span(2, 1, -240, -239),
        span(3, 1, 5, 4),
        span(4, 1, years, years + 1),
    ]
    whole = tree(spans)
    assert whole.roots == (f"{1:016x}",)
    assert whole.skewed == {f"{n:016x}" for n in (2, 3, 4)}
    assert whole.spans[f"{3:016x}"].duration_ns is None
    assert whole.spans[f"{3:016x}"].start_ns == 1_005 * SECOND
    t = one(READER, jsonl(export(*spans)))
    assert t.marks == ("skew: 3 of 4 spans",)
    assert t.started_at is not None
    assert t.started_at.timestamp() == 1_000


def test_a_skewed_call_has_no_latency() -> None:
    backwards = chat(2, [ASK], REPLY, start=5) | {"endTimeUnixNano": str(1_001 * SECOND)}
    t = one(READER, jsonl(export(span(1, end=9), backwards)))
    assert t.turns[0].latency_s is None
    assert t.turns[0].action.marks == ("skew",)


# --- conversations ----------------------------------------------------------------------------------------------------


def test_calls_and_tools_become_one_conversation() -> None:
    failed = {"code": 2, "message": "no such city"}
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "w"}
    spans = [
        chat(3, [ASK, CALL, RESULT], REPLY, start=3),
        span(4, 1, 2, 3, name="execute_tool weather", attributes=about, status=failed),
        chat(2, [ASK], CALL, start=1, attributes={"gen_ai.response.model": "m-7"}),
        span(1, end=9, attributes={"gen_ai.conversation.id": "conv-5"}),
    ]
    t = one(READER, jsonl(export(*spans)))
    assert [turn.action.text for turn in t.turns] == ["", "22 degrees."]
    assert t.turns[0].action.tool_calls == (ToolCall("w", "weather", '{"city":"Rome"}'),)
    assert [m.marks for m in t.turns[1].observation] == [("tool error",)]
    assert (t.harness_version, t.stop_reason) == ("1.2", None)
    assert t.metadata is not None
    assert (t.metadata["service"], t.metadata["gen_ai_conversation_id"]) == ("bot", "conv-5")
    assert t.policy is None


def test_the_last_result_comes_from_its_span() -> None:
    about = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.call.id": "w",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.result": "22 C",
    }
    tool = span(3, 1, 2, 3, name="execute_tool weather", attributes=about)
    t = one(READER, jsonl(export(chat(2, [ASK], CALL), tool)))
    assert [(m.role, m.text, m.tool_call_id) for m in t.tail] == [("tool", "22 C", "w")]


def test_a_call_that_failed_ends_the_conversation_with_its_error() -> None:
    status = {"code": 2, "message": "timed out"}
    failed = chat(2, [ASK], None, status=status, attributes={"error.type": "timeout"})
    t = one(READER, jsonl(export(failed)))
    assert (t.turns, t.stop_reason, t.marks) == (
        (),
        "error: timeout: timed out",
        ("infrastructure error",),
    )


def test_message_events() -> None:
    call = [
        {
            "id": "w",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
        }
    ]
    events = [
        {"name": "gen_ai.system.message", "attributes": [attribute("content", "Be brief.")]},
        {"name": "gen_ai.user.message", "attributes": [attribute("content", "weather?")]},
        {"name": "gen_ai.assistant.message", "attributes": [attribute("tool_calls", call)]},
        {
            "name": "gen_ai.tool.message",
            "attributes": [attribute("content", "22 C"), attribute("id", "w")],
        },
        {"name": "gen_ai.choice", "attributes": [attribute("message", {"content": "22."})]},
    ]
    t = one(READER, jsonl(export(span(2, name="chat m", events=events))))
    assert [m.role for m in t.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert t.turns[0].action.tool_calls == (ToolCall("w", "weather", '{"city": "Rome"}'),)
    assert [m.marks for m in t.turns[1].observation] == [()]
    assert t.turns[1].action.text == "22."


def test_messages_in_a_details_event() -> None:
    details = [
        attribute("gen_ai.input.messages", [ASK]),
        attribute("gen_ai.output.messages", [REPLY]),
    ]
    events = [{"name": "gen_ai.client.inference.operation.details", "attributes": details}]
    t = one(READER, jsonl(export(span(2, name="chat m", events=events))))
    assert t.turns[0].action.text == "22 degrees."


def test_indexed_attributes() -> None:
    attributes = {
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.10.content": "second",
        "gen_ai.prompt.2.content": "first",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.tool_calls.0.id": "w",
        "gen_ai.completion.0.tool_calls.0.name": "weather",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"city": 1}',
    }
    t = one(READER, jsonl(export(span(2, name="chat m", attributes=attributes))))
    assert [m.text for m in t.turns[0].observation] == ["Be brief.", "first", "second"]
    assert t.turns[0].action.tool_calls == (ToolCall("w", "weather", '{"city": 1}'),)


def test_parts_of_other_dialects() -> None:
    """Instructions beside the messages, Gemini's role `model` and untyped parts, reasoning, several results in one."""
    thought = {"text": "hm", "thought": True}
    answer = {"parts": [thought, {"text": "yes"}], "role": "model"}
    both = {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": i, "result": {"n": 1}} for i in "ab"],
    }
    about = {"gen_ai.system_instructions": [{"type": "text", "content": "Be kind."}]}
    t = one(READER, jsonl(export(chat(2, [text("user", "hi"), both], answer, attributes=about))))
    assert [m.text for m in t.turns[0].observation] == ["Be kind.", "hi", '{"n":1}', '{"n":1}']
    assert t.turns[0].action.text == "yes"
    assert t.turns[0].action.role == "assistant"


def test_evaluations_are_feedback() -> None:
    about = {"gen_ai.evaluation.name": "kindness", "gen_ai.evaluation.score.value": 0.25}
    event = {
        "name": "gen_ai.evaluation.result",
        "attributes": [attribute(k, v) for k, v in about.items()],
    }
    t = one(READER, jsonl(export(chat(2, [ASK], REPLY, events=[event]))))
    (given,) = t.feedback
    assert (given.source, given.kind, given.name, given.score) == (
        "judge",
        "rating",
        "kindness",
        0.25,
    )


@pytest.mark.parametrize(
    "line",
    [
        {"resourceSpans": []},
        {"resourceSpans": 5},
        {"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]},
        export(span(1, startTimeUnixNano="soon")),
        export(span(1, attributes_="x") | {"attributes": [5]}),
        export(chat(1, [{"role": "banana", "parts": []}], None)),
        export(chat(1, [{"role": "user", "parts": [{"type": "tool_call", "name": 5}]}], None)),
    ],
)
def test_unreadable_exports_are_rejected_not_raised(line: dict[str, Any]) -> None:
    (found,) = read(READER, jsonl(line))
    assert isinstance(found, Rejected)


@pytest.mark.parametrize(("task", "num_spans", "num_errors"), [(13, 43, 6), (24, 27, 0)])
def test_real_replays(task: int, num_spans: int, num_errors: int) -> None:
    """One trace each; calls and results are those of the trajectory in the tau-bench file that was replayed."""
    records = records_of(READER, real(f"otlp_json/replay_task{task}_trial0.json"))
    assert len(records) == num_spans
    t = READER.assemble(records, "desk")
    assert READER.assemble([*records[::-1], records[0]], "desk") == t
    episodes = orjson.loads(real("tau_bench/gpt-4o-airline.prefix.json"))
    (source,) = (e["traj"] for e in episodes if (e["task_id"], e["trial"]) == (task, 0))
    actions = [m for m in source if m["role"] == "assistant"]
    assert [turn.action.text for turn in t.turns] == [m["content"] or "" for m in actions]
    assert [[c.id for c in turn.action.tool_calls] for turn in t.turns] == [
        [c["id"] for c in m.get("tool_calls") or ()] for m in actions
    ]
    assert {turn.executor for turn in t.turns} == {"policy"}
    marks = Counter(mark for message in t.messages for mark in message.marks)
    assert marks == ({"tool error": num_errors} if num_errors else {})


@pytest.mark.parametrize("name", ["claude_code", "cursor"])
def test_real_payloads_with_zero_ids(name: str) -> None:
    (found,) = read(READER, real(f"otlp_json/{name}.json"))
    assert isinstance(found, Rejected)
    assert "all-zero" in found.reason

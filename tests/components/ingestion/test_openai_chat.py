"""OpenAI chat traffic: kept as it was, joined into conversations, judged by feedback."""

from collections import Counter
from typing import Any

import pytest

from components.errors import RecordError
from components.ingestion.openai_chat import OpenAIChat
from components.protocols import RawRecord, Rejected
from components.records import Feedback, ToolCall

from .logs import conversations, jsonl, one, read, real, records_of

READER = OpenAIChat()
USER = {"role": "user", "content": "where is order 7?"}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def calls(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(entries)}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool(call_id: str | None, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text} | ({"tool_call_id": call_id} if call_id else {})


def exchange(messages: list[Any], answer: Any, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": answer, "finish_reason": "stop"}
    return {
        "nightshift": 1,
        "kind": "exchange",
        "agent": "desk",
        "conversation": "c-1",
        "at": "2026-03-01T10:00:00+00:00",
        "request": {"model": "m", "messages": messages},
        "response": {"model": "m", "choices": [choice]},
        "status": 200,
    } | more


def feedback(at: str = "2026-03-01T11:00:00+00:00", **fields: Any) -> dict[str, Any]:
    head = {"nightshift": 1, "kind": "feedback", "agent": "desk", "conversation": "c-1", "at": at}
    return head | {"feedback": {"source": "user", **fields}}


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_glued_arguments_are_one_call_that_does_not_parse() -> None:
    """Two objects in one string: 1 call, raw text untouched, "Extra data" at the end of the first (9 characters)."""
    glued = '{"p":"a"}{"p":"b"}'
    t = one(
        READER,
        jsonl({"id": "g", "messages": [USER, calls(call("k", "read", glued)), tool("k", "error")]}),
    )
    assert len(t.messages) == 3
    (only,) = t.turns[0].action.tool_calls
    assert (only.arguments, only.parsed) == (glued, None)
    assert only.problem is not None
    assert "Extra data" in only.problem
    assert "char 9" in only.problem


def test_cut_off_empty_blank_and_legal_arguments() -> None:
    entries = [
        call(f"k{n}", "f", text) for n, text in enumerate(['{"city": "Par', "", "   ", "{}"])
    ]
    t = one(READER, jsonl({"messages": [USER, calls(*entries)], "finish_reason": "length"}))
    made = t.turns[0].action.tool_calls
    assert [c.arguments for c in made] == ['{"city": "Par', "", "   ", "{}"]
    assert made[0].problem is not None
    assert made[0].problem.startswith("invalid arguments")
    assert (made[1].problem, made[2].problem) == ("empty arguments", "empty arguments")
    assert (made[3].problem, made[3].parsed) == (None, {})
    assert (t.turns[0].finish_reason, t.stop_reason) == ("length", "length")


def test_result_without_its_call_is_kept_and_marked() -> None:
    history = [
        {"role": "system", "content": "You book."},
        tool("gone", "3 seats"),
        said("3 seats. Book?"),
        {"role": "user", "content": "yes"},
        calls(call("d", "book", "{}")),
        tool("d", "ok"),
    ]
    t = one(READER, jsonl({"messages": history}))
    assert [m.marks for m in t.messages] == [(), ("orphan tool result",), (), (), (), ()]
    assert len(t.tail) == 1


def test_parallel_calls_pair_by_id_and_the_unanswered_one_is_marked() -> None:
    history = [
        USER,
        calls(call("e1", "w", '"Oslo"'), call("e2", "w", '"Rome"')),
        tool("e2", "22"),
        said("22"),
    ]
    t = one(READER, jsonl({"messages": history}))
    assert t.turns[0].action.marks == ("no result e1",)
    assert t.turns[1].observation[0].tool_call_id == "e2"


def test_calls_at_the_end_of_a_log_are_not_unanswered() -> None:
    assert (
        one(READER, jsonl({"messages": [USER, calls(call("e", "w", "{}"))]})).turns[0].action.marks
        == ()
    )


def test_results_without_id_pair_in_order() -> None:
    history = [
        USER,
        calls(call("", "a", "{}"), call("", "b", "{}")),
        tool(None, "1"),
        tool(None, "2"),
        said("x"),
    ]
    t = one(READER, jsonl({"messages": history}))
    assert [m.marks for m in t.messages] == [()] * 5


def test_instructions_keep_their_role_and_order() -> None:
    history = [
        {"role": "developer", "content": "French."},
        USER,
        {"role": "developer", "content": "Short."},
        said("Oui."),
    ]
    t = one(READER, jsonl({"messages": history}))
    assert [m.role for m in t.turns[0].observation] == ["developer", "user", "developer"]


def test_a_bad_message_is_quarantined_by_place() -> None:
    lines = jsonl(
        {"messages": [USER, {"role": "banana", "content": "x"}]}, {"messages": [USER, said("y")]}
    )
    bad, good = read(READER, lines)
    assert isinstance(bad, Rejected)
    assert "message 1" in bad.reason
    assert "'banana'" in bad.reason
    assert bad.line == 1
    assert isinstance(good, RawRecord)


@pytest.mark.parametrize(
    "line",
    [
        {"hello": 1},
        {"messages": "no"},
        {"messages": [3]},
        {
            "request": {"messages": [USER]},
            "response": {"content": [{"type": "text"}], "type": "message"},
        },
        {"request": {"input": "x"}, "response": {"output": []}},
        {"request": 5, "response": None},
        {"request": {"messages": {}}, "response": None},
        {
            "request": {"messages": [USER]},
            "response": {"choices": [{"message": {"tool_calls": [1]}}]},
        },
        {
            "nightshift": 1,
            "kind": "feedback",
            "conversation": "c",
            "feedback": {"source": "cat", "kind": "edit"},
        },
        {"nightshift": 1, "kind": "feedback", "conversation": "c", "feedback": {"source": "user"}},
        {"nightshift": 1, "kind": "feedback", "conversation": "c", "feedback": {"mood": 1}},
        {"nightshift": 1, "kind": "feedback", "feedback": {"source": "user", "kind": "accept"}},
    ],
)
def test_unreadable_lines_are_rejected_not_raised(line: dict[str, Any]) -> None:
    (found,) = read(READER, jsonl(line))
    assert isinstance(found, Rejected)
    assert (found.line, found.start) == (1, 0)


def test_altered_messages_are_marked_one_by_one() -> None:
    line = (
        rb'{"messages":[{"role":"user","content":"ok"},{"role":"tool","tool_call_id":"c","content":"a\u0000b",'
        rb'"extra":{"k\u0000":1}},{"role":"assistant","content":"\\u0000"}]}' + b"\n"
    )
    t = one(READER, line)
    assert [m.text for m in t.messages] == ["ok", "a\ufffdb", "\\u0000"]
    assert [("altered" in m.marks) for m in t.messages] == [False, True, False]
    assert t.marks == ("altered",)


# --- failed calls -----------------------------------------------------------------------------------------------------


def test_provider_errors_are_conversations_without_an_answer() -> None:
    """HTTP 200 with an error inside, a null answer, and a normal one: three records, three trajectories."""
    request = {"model": "m", "messages": [USER]}
    answer = {"choices": [{"message": said("Hello!"), "finish_reason": "stop"}]}
    lines = jsonl(
        {
            "id": "1",
            "request": request,
            "response": {"choices": None, "error": {"message": "m", "code": 400}},
        },
        {
            "id": "2",
            "request": request,
            "response": {"error": {"message": "wait", "code": "rate_limit"}},
        },
        {"id": "3", "request": request, "response": None},
        {"id": "4", "request": request, "response": answer},
    )
    made = conversations(READER, records_of(READER, lines))
    reasons = [t.stop_reason for t in made]
    assert reasons == [
        "error: 400: m",
        "error: rate_limit: wait",
        "error: unknown: no response",
        None,
    ]
    assert [len(t.turns) for t in made] == [0, 0, 0, 1]
    assert all(t.outcome is None for t in made)
    assert [t.marks for t in made[:3]] == [("infrastructure error",)] * 3
    assert made[0].tail[0].text == USER["content"]


def test_an_error_that_was_tried_again_is_only_a_mark() -> None:
    failed = exchange([USER], None, response=None, status=503, error="503: down")
    t = one(READER, jsonl(failed, exchange([USER], said("in transit"))))
    assert t.stop_reason is None
    assert [turn.action.text for turn in t.turns] == ["in transit"]
    assert t.marks == ("failed calls on the way: 1, last 503: down",)


# --- joining ----------------------------------------------------------------------------------------------------------

LOOKUP = calls(call("k", "lookup", '{"order": 7}'))
FIRST = exchange(
    [USER],
    LOOKUP,
    prompt_ids=[1, 2],
    completion_ids=[3, 4],
    logprobs=[-0.5, -0.25],
    policy_version="v3",
    latency_s=0.5,
)
SECOND = exchange(
    [USER, LOOKUP, tool("k", "in transit")], said("It is on its way."), at="2026-03-01T10:00:05Z"
)


def test_growing_requests_are_one_conversation() -> None:
    """`conversations` also checks every order and repetition."""
    t = one(READER, jsonl(FIRST, SECOND))
    assert (t.agent, t.conversation_id, len(t.turns), t.tail) == ("desk", "c-1", 2, ())
    first, second = t.turns
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == (
        (1, 2),
        (3, 4),
        (-0.5, -0.25),
    )
    assert (first.policy_version, first.latency_s, first.executor) == ("v3", 0.5, "policy")
    assert first.action.tool_calls == (ToolCall("k", "lookup", '{"order": 7}'),)
    assert [m.role for m in second.observation] == ["tool"]
    assert second.completion_ids is None
    assert t.started_at is not None
    assert t.started_at.isoformat() == "2026-03-01T10:00:00+00:00"
    assert t.policy == "m"


def test_without_an_id_the_opening_joins() -> None:
    lines = [{key: line[key] for key in ("request", "response", "at")} for line in (FIRST, SECOND)]
    other = {
        "request": {"messages": [{"role": "user", "content": "bye"}]},
        "response": FIRST["response"],
    }
    made = conversations(READER, records_of(READER, jsonl(*lines, other)))
    assert sorted(len(t.turns) for t in made) == [1, 2]


def test_an_answer_changed_on_resend_keeps_what_the_model_said() -> None:
    first = exchange([USER], said("<think>hm</think> On its way."))
    second = exchange(
        [USER, said("On its way."), {"role": "user", "content": "thanks"}], said("Welcome.")
    )
    t = one(READER, jsonl(first, second))
    assert t.turns[0].action.text == "<think>hm</think> On its way."
    assert t.turns[0].action.marks == ("altered on resend",)
    assert [turn.executor for turn in t.turns] == ["policy", "policy"]


def test_history_that_was_never_answered_here_is_replay() -> None:
    t = one(READER, jsonl(SECOND))
    assert [turn.executor for turn in t.turns] == ["replay", "policy"]
    assert t.turns[0].action.marks == ("not observed",)


def test_changing_instructions_do_not_tear_a_conversation() -> None:
    clock = [{"role": "system", "content": f"It is {n} o'clock."} for n in (1, 2)]
    first = exchange([clock[0], USER], said("one"))
    second = exchange([clock[1], USER, said("one"), USER], said("two"))
    t = one(READER, jsonl(first, second))
    assert [(turn.action.text, turn.executor) for turn in t.turns] == [
        ("one", "policy"),
        ("two", "policy"),
    ]


def test_windows_are_completed() -> None:
    """Requests that repeat only the last answer: the conversation is still whole, once in order of time."""
    second = exchange(
        [LOOKUP, tool("k", "in transit")], said("on its way"), at="2026-03-01T10:00:05Z"
    )
    third = exchange([said("on its way"), USER], said("yes"), at="2026-03-01T10:00:09Z")
    t = one(READER, jsonl(FIRST, second, third))
    assert [turn.action.text for turn in t.turns] == ["", "on its way", "yes"]
    assert [turn.executor for turn in t.turns] == ["policy"] * 3
    assert t.marks == ()


def test_forks_are_counted_and_the_longest_chain_is_kept() -> None:
    fork = exchange([USER], said("no idea"))
    t = one(READER, jsonl(FIRST, fork, SECOND))
    assert [turn.action.text for turn in t.turns] == ["", "It is on its way."]
    assert t.marks == ("exchanges beside the longest chain: 1",)


def test_tokens_that_do_not_align_are_not_used() -> None:
    bad = exchange([USER], said("x"), completion_ids=[1, 2], prompt_ids=[0], logprobs=[-1.0])
    (turn,) = one(READER, jsonl(bad)).turns
    assert (turn.prompt_ids, turn.completion_ids, turn.logprobs) == (None, None, None)
    assert turn.action.marks == ("misaligned: 2 tokens, 1 logprobs",)


def test_tokens_are_whole_numbers_and_logprobs_fractions() -> None:
    """As some gateways write them: an id as 1.0 or "2", a log-probability of 0 as a whole number."""
    odd = exchange([USER], said("x"), completion_ids=[1.0, "2"], prompt_ids=[0], logprobs=[0, -1.5])
    (turn,) = one(READER, jsonl(odd)).turns
    numbers = (*(turn.completion_ids or ()), *(turn.logprobs or ()))
    assert numbers == (1, 2, 0.0, -1.5)
    assert [type(number) for number in numbers] == [int, int, float, float]


def test_engine_tokens_inside_the_response_are_read() -> None:
    """vLLM's own places: `prompt_token_ids`, `choices[0].token_ids`, `logprobs.content`."""
    line = exchange([USER], said("x"))
    line["response"]["prompt_token_ids"] = [5, 6]
    line["response"]["choices"][0] |= {
        "token_ids": [7],
        "logprobs": {"content": [{"logprob": -0.1}]},
    }
    (turn,) = one(READER, jsonl(line)).turns
    assert (turn.prompt_ids, turn.completion_ids, turn.logprobs) == ((5, 6), (7,), (-0.1,))


def test_streams_and_bodies_logged_as_text() -> None:
    sse = 'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    for key, body in (
        ("response", sse),
        ("response_sse", sse),
        ("response", '{"choices":[{"message":{"content":"hi"}}]}'),
    ):
        t = one(READER, jsonl({"request": {"messages": [USER]}, key: body}))
        assert t.turns[0].action.text == "hi"
    t = one(
        READER, jsonl({"request": {"messages": [USER]}, "response": "<html>bad gateway</html>"})
    )
    assert t.stop_reason == "error: unknown: <html>bad gateway</html>"


def test_lines_that_are_chunks_are_one_answer() -> None:
    def chunk(index: int, entry: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {
            "choices": [
                {
                    "index": 0,
                    "delta": {"tool_calls": [{"index": index, **entry}]},
                    "finish_reason": reason,
                }
            ]
        }

    lines = [
        chunk(0, {"id": "f1", "function": {"name": "read", "arguments": '{"p":"a"}'}}),
        chunk(0, {"id": "f2", "function": {"name": "read", "arguments": '{"p'}}),
        chunk(0, {"function": {"arguments": '":"b"}'}}, "tool_calls"),
    ]
    t = one(READER, jsonl(*lines))
    assert t.turns[0].action.tool_calls == (
        ToolCall("f1", "read", '{"p":"a"}'),
        ToolCall("f2", "read", '{"p":"b"}'),
    )
    assert read(READER, jsonl(*lines[:2])) == []


def test_record_ids_are_content_and_conversation() -> None:
    twice = records_of(READER, jsonl(FIRST, FIRST, SECOND))
    assert twice[0].id == twice[1].id != twice[2].id
    assert {record.conversation_id for record in twice} == {"c-1"}


# --- feedback ---------------------------------------------------------------------------------------------------------


def test_outcome_and_its_source() -> None:
    yes = feedback(kind="outcome", score=1.0)
    later_no = feedback(at="2026-03-01T12:00:00+00:00", kind="outcome", score=0.5)
    assert one(READER, jsonl(FIRST, SECOND, yes)).outcome is True
    t = one(READER, jsonl(FIRST, SECOND, yes, later_no))
    assert (t.outcome, t.outcome_source, len(t.feedback)) == (False, "user", 2)
    abstained = one(READER, jsonl(FIRST, feedback(kind="outcome")))
    assert (abstained.outcome, abstained.outcome_source) == (None, None)


def test_a_rating_is_no_outcome() -> None:
    t = one(READER, jsonl(FIRST, feedback(kind="rating", score=1.0, name="stars", actor="ann")))
    assert t.outcome is None
    assert t.feedback[0].name == "stars"
    assert t.feedback[0].occurred_at is not None


def test_take_over_adds_the_persons_turns() -> None:
    """The person repeats turn 1: sees what the agent saw there (the tool result), refunds, and says so."""
    refund = calls(call("h", "refund", '{"order":7}'))
    done = [
        refund,
        tool("h", "refunded"),
        said("Your money is back."),
        {"role": "user", "content": "great"},
    ]
    t = one(READER, jsonl(FIRST, SECOND, feedback(kind="edit", turn=1, messages=done, actor="bob")))
    assert [turn.executor for turn in t.turns] == ["policy", "policy", "human", "human"]
    assert [turn.index for turn in t.turns] == [0, 1, 2, 3]
    assert t.turns[2].observation == t.turns[1].observation
    assert [m.text for m in t.turns[3].observation] == ["refunded"]
    assert t.turns[2].action.tool_calls[0].name == "refund"
    assert (t.stop_reason, [m.text for m in t.tail]) == ("takeover", ["great"])
    (edit,) = t.feedback
    assert (edit.kind, edit.turn, edit.before, edit.actor) == (
        "edit",
        1,
        "It is on its way.",
        "bob",
    )
    assert edit.after is not None
    assert '"refund"' in edit.after


def test_take_over_at_the_end_sees_the_tail() -> None:
    failed = exchange([USER, LOOKUP, tool("k", "none")], None, response=None, error="503: down")
    edit = feedback(kind="edit", messages=[said("Sorry, a person here.")])
    t = one(READER, jsonl(FIRST, failed, edit))
    assert [m.text for m in t.turns[1].observation] == ["none"]
    assert (t.turns[1].executor, t.tail, t.stop_reason) == ("human", (), "takeover")


def test_a_call_is_the_text_before_an_edit_when_nothing_was_said() -> None:
    t = one(READER, jsonl(FIRST, feedback(kind="edit", turn=0, messages=[said("no")])))
    assert t.feedback[0].before is not None
    assert '"lookup"' in t.feedback[0].before


def test_feedback_before_its_conversation() -> None:
    t = one(READER, jsonl(feedback(kind="accept")))
    assert t.turns == ()
    assert t.feedback == (Feedback("user", "accept", occurred_at=t.feedback[0].occurred_at),)


# --- real files -------------------------------------------------------------------------------------------------------


def test_real_gateway_log() -> None:
    """Manifest: 88 records, 6 error bodies of which 3 are one request sent three times byte for byte, 16 tool calls.

    One more answer (HTTP 200) has no choices, so 6 - 2 + 1 = 5 conversations end with an error.
    """
    records = records_of(READER, real("openai_chat_jsonl/requests.jsonl"))
    assert len(records) == 88
    assert len({record.id for record in records}) == 86
    made = conversations(READER, records)
    assert sum((t.stop_reason or "").startswith("error: ") for t in made) == 5
    observed = [turn for t in made for turn in t.turns if turn.executor == "policy"]
    assert sum(len(turn.action.tool_calls) for turn in observed) == 16


def test_real_conversations() -> None:
    made = conversations(READER, records_of(READER, real("messages_jsonl/conversations.jsonl")))
    roles = Counter(m.role for t in made for m in t.messages)
    assert (len(made), roles) == (128, {"user": 128, "assistant": 128, "system": 25})


def test_real_pairs() -> None:
    stream = one(READER, real("openai_chat_pairs/ChatCompletions_streaming.response.sse.txt"))
    assert stream.turns[0].action.text == "In circuits bright, minds take flight."
    assert stream.turns[0].usage is not None
    assert stream.turns[0].usage.output_tokens == 12
    answer = one(READER, real("openai_chat_pairs/ChatCompletions_tools.response.json"))
    assert answer.turns[0].action.tool_calls[0].arguments.startswith('{"location": "San')


def test_assemble_of_nothing_is_refused() -> None:
    with pytest.raises((IndexError, RecordError)):
        READER.assemble([], "desk")

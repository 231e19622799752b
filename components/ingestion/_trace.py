"""A trace -> what was said in it: model calls joined, tool spans matched with results, evaluations as feedback.

Model calls are spans whose operation is one of `CALLS`. Where some carry content, those are joined and the rest is left
out; where none does, the root's own input and output are taken; else every call is a turn without words.
The k-th tool span of a call id belongs to the k-th result with that id.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from components.ingestion._chain import Exchange, join
from components.ingestion._conversation import Answer, build_turns, mark, read_nanoseconds
from components.ingestion._genai import read_messages, read_tools, read_usage
from components.ingestion._spans import Span, Trace
from components.records import Feedback, Message, Trajectory

CALLS = ("chat", "text_completion", "generate_content", "llm", "llm_call")
TOOL = "execute_tool"
EVALUATION = "gen_ai.evaluation.result"


def speak(trace: Trace, root: Span, empty: Trajectory) -> Trajectory:
    """The trajectory with the turns that the trace holds."""
    ordered = sorted(trace.spans.values(), key=lambda span: (span.start_ns or 0, span.id))
    calls = [span for span in ordered if span.operation in CALLS]
    exchanges = [found for span in calls if (found := _exchange(span, trace)) is not None]
    if not exchanges and (around := _exchange(root, trace)) is not None:
        exchanges = [around]
    if exchanges:
        return _with_tools(join(exchanges, empty), trace, ordered)
    return _wordless(calls, trace, empty) if calls else empty


def _exchange(span: Span, trace: Trace) -> Exchange | None:
    given, said = read_messages(span)
    if not given and said is None:
        return None
    answer = None if said is None else _answer(span, trace, said)
    return Exchange(
        span.record_id,
        tuple(given),
        answer,
        error=None if answer else _why(span),
        at=read_nanoseconds(span.start_ns),
        model=_model(span),
        tools=read_tools(span.attributes),
    )


def _wordless(calls: Sequence[Span], trace: Trace, empty: Trajectory) -> Trajectory:
    silent = Message("assistant", None, marks=("content not captured",))
    answers = [_answer(span, trace, silent) for span in calls if span.error is None]
    messages = [answer.message for answer in answers]
    turns, tail = build_turns(messages, dict(enumerate(answers)))
    last = calls[-1]
    reason = None if last.error is None else f"error: {_why(last)}"
    return replace(empty, turns=turns, tail=tail, policy=_model(last), stop_reason=reason)


def _answer(span: Span, trace: Trace, said: Message) -> Answer:
    reasons = span.attributes.get("gen_ai.response.finish_reasons")
    first = reasons[0] if isinstance(reasons, list) and reasons else reasons
    duration = span.duration_ns
    return Answer(
        mark(said, "skew") if span.id in trace.skewed else said,
        finish_reason=read_text(first or None),
        usage=read_usage(span.attributes),
        latency_s=None if duration is None else duration / 1e9,
    )


def _why(span: Span) -> str:
    kind = span.attributes.get("error.type") or "unknown"
    return f"{kind}: {span.error or 'no answer in the span'}"


def _model(span: Span) -> str | None:
    asked = span.attributes.get("gen_ai.request.model")
    return read_text(span.attributes.get("gen_ai.response.model") or asked)


def read_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _with_tools(trajectory: Trajectory, trace: Trace, ordered: Iterable[Span]) -> Trajectory:
    """Results marked by their tool spans; the results of the last calls, which no later request repeats, added."""
    waiting: dict[str, list[Span]] = {}
    for span in ordered:
        call_id = read_text(span.attributes.get("gen_ai.tool.call.id"))
        if span.operation == TOOL and call_id is not None:
            waiting.setdefault(call_id, []).append(span)
    turns = tuple(
        replace(turn, observation=tuple(_matched(turn.observation, waiting, trace)))
        for turn in trajectory.turns
    )
    tail = tuple(_matched(trajectory.tail, waiting, trace))
    answered = {message.tool_call_id for message in tail}
    late = [
        _noted(_result(waiting[call.id][0], call.id), waiting, trace)
        for call in (turns[-1].action.tool_calls if turns else ())
        if call.id not in answered and waiting.get(call.id)
    ]
    return replace(trajectory, turns=turns, tail=(*tail, *late))


def _matched(
    messages: Iterable[Message], waiting: dict[str, list[Span]], trace: Trace
) -> Iterator[Message]:
    for message in messages:
        yield _noted(message, waiting, trace) if message.role == "tool" else message


def _noted(message: Message, waiting: dict[str, list[Span]], trace: Trace) -> Message:
    spans = waiting.get(message.tool_call_id or "")
    if not spans:
        return message
    span = spans.pop(0)
    marks = ["tool error"] if span.error is not None else []
    if span.id in trace.skewed:
        marks.append("skew")
    return mark(message, *marks)


def _result(span: Span, call_id: str) -> Message:
    result = span.attributes.get("gen_ai.tool.call.result", "")
    text = result if isinstance(result, str) else orjson.dumps(result).decode()
    name = read_text(span.attributes.get("gen_ai.tool.name"))
    return Message("tool", text, tool_call_id=call_id, name=name)


def trace_marks(trace: Trace) -> tuple[str, ...]:
    marks: list[str] = []
    if any(span.marks for span in trace.spans.values()):
        marks.append("altered")
    if trace.attempts:
        marks.append(f"conflict: {sum(trace.attempts.values())} other versions")
    if trace.skewed:
        marks.append(f"skew: {len(trace.skewed)} of {len(trace.spans)} spans")
    return tuple(marks)


def describe(trace: Trace, root: Span) -> dict[str, Any]:
    """What the trajectory's metadata says about its trace."""
    named = (
        span.attributes.get("gen_ai.conversation.id") for span in (root, *trace.spans.values())
    )
    return {
        "root": root.id,
        "num_roots": len(trace.roots),
        "num_spans": len(trace.spans),
        "attempts": dict(trace.attempts),
        "skewed": sorted(trace.skewed),
        "service": read_text(root.resource.get("service.name")),
        "gen_ai_conversation_id": next((read_text(name) for name in named if name), None),
    }


def read_feedback(trace: Trace) -> tuple[Feedback, ...]:
    """Evaluation events in order of their spans."""
    found: list[Feedback] = []
    for span_id in sorted(trace.spans):
        for name, about in trace.spans[span_id].events:
            if name == EVALUATION:
                score = about.get("gen_ai.evaluation.score.value")
                label = about.get("gen_ai.evaluation.score.label")
                found.append(
                    Feedback(
                        "judge",
                        "rating",
                        score=float(score) if isinstance(score, int | float) else None,
                        text=read_text(about.get("gen_ai.evaluation.explanation") or label),
                        name=read_text(about.get("gen_ai.evaluation.name")),
                    )
                )
    return tuple(found)

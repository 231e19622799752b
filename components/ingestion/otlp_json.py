"""OTLP/JSON traces with GenAI attributes: ExportTraceServiceRequest, one per line or one per file.

    {"resourceSpans": [{"resource": {"attributes": [...]}, "scopeSpans": [{"spans": [{"traceId": "...", ...}]}]}]}

One record per span, one trajectory per trace. The model calls of a trace carry the whole history each, so they are joined
like any other exchanges (`_chain.py`); without captured content every call is a turn without words, in order of time. How
spans are read, de-duplicated and put under parents is said in `_spans.py`, how messages in `_genai.py`.

Tool spans tell which results were errors and add the last results that no later call repeats. Evaluation events become
feedback. Marks: `skew` (on the trajectory and on the turn's action), `conflict` (two versions of one span). The start is
the root's, so one wrong clock among the children does not move the night.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import orjson

from components.errors import RecordError
from components.ingestion._conversation import distinct, read_nanoseconds, source_of, trajectory_id
from components.ingestion._framing import MAX_BYTES, Frame, frames
from components.ingestion._genai import read_messages
from components.ingestion._spans import merge, read_span
from components.ingestion._trace import describe, read_feedback, read_text, speak, trace_marks
from components.plugins import plugin
from components.protocols import Detection, RawRecord, Rejected
from components.records import Trajectory
from components.serial import digest


@plugin
class OtlpJson:
    max_bytes: int = MAX_BYTES
    """Longest line or file that is read, in bytes."""

    def detect(self, head: bytes, name: str) -> Detection:
        if b'"resourceSpans"' in head or b'"resource_spans"' in head:
            return Detection(1.0, "contains resourceSpans")
        return Detection(0.0, "no resourceSpans")

    def read(self, stream: BinaryIO) -> Iterator[RawRecord | Rejected]:
        for frame in frames(stream, self.max_bytes):
            if isinstance(frame, Rejected):
                yield frame
                continue
            try:
                payloads = list(_payloads(frame.payload))
            except (AttributeError, TypeError) as error:
                yield _refuse(frame, f"not an ExportTraceServiceRequest: {error!r}", frame.raw)
                continue
            if not payloads:
                yield _refuse(frame, "no spans under resourceSpans", frame.raw)
            for payload in payloads:
                yield _record(frame, payload)

    def assemble(self, records: Sequence[RawRecord], agent: str) -> Trajectory:
        known = distinct(records)
        trace = merge([read_span(record.payload, record.id, record.marks) for record in known])
        root = trace.spans[trace.roots[0]] if trace.roots else next(iter(trace.spans.values()))
        empty = Trajectory(
            id=trajectory_id(known, agent),
            agent=agent,
            turns=(),
            conversation_id=known[0].conversation_id,
            source=source_of(known),
            marks=trace_marks(trace),
        )
        spoken = speak(trace, root, empty)
        return replace(
            spoken,
            started_at=read_nanoseconds(root.start_ns),
            harness_version=read_text(root.resource.get("service.version")),
            feedback=read_feedback(trace),
            metadata=describe(trace, root),
        )


def _payloads(payload: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for block in payload.get("resourceSpans") or payload.get("resource_spans") or ():
        scopes = block.get("scopeSpans") or block.get("instrumentationLibrarySpans") or ()
        for scope in scopes:
            for span in scope.get("spans") or ():
                yield {"resource": block.get("resource") or {}, "span": span}


def _record(frame: Frame, payload: dict[str, Any]) -> RawRecord | Rejected:
    raw = orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)
    try:
        span = read_span(payload)
        read_messages(span)
    except RecordError as error:
        return _refuse(frame, str(error), raw)
    return RawRecord(
        id=digest(f"otlp_json\n{span.trace_id}\n".encode() + raw),
        format="otlp_json",
        conversation_id=span.trace_id,
        payload=payload,
        start=frame.start,
        end=frame.end,
        line=frame.line,
        marks=("altered /",) if frame.marks else (),
    )


def _refuse(frame: Frame, reason: str, raw: bytes) -> Rejected:
    text = raw[:300].decode("utf-8", "replace")
    return Rejected(reason, frame.start, frame.end, frame.line, text)

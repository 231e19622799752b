"""OpenAI chat traffic: what gateways log, whole conversations, and the recording proxy's own lines.

One JSON object per line (or an array of them, or one document), any of

    {"request": {"model": "m", "messages": [...]}, "response": {"choices": [...]}, "timestamp": 1781275708}
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello!"}]}
    {"nightshift": 1, "kind": "feedback", "agent": "desk", "conversation": "c-7", "at": "2026-03-01T10:00:00+00:00",
     "feedback": {"source": "user", "kind": "outcome", "score": 1.0}}

A response may be an error body, null, or the text of a server-sent event stream; lines that are the chunks of a stream
are merged into one response. Exchanges of one conversation become one
trajectory in whatever order they arrive; what joins them is said in `_openai_lines.py`, how they are joined in
`_chain.py`, what feedback does in `_feedback.py`. A failed call yields no assistant turn; when it is the end of the
conversation the stop reason is `error: <code>: <message>` and the outcome stays unknown.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

from components.errors import RecordError
from components.ingestion._chain import Exchange, join
from components.ingestion._chunks import join_chunks
from components.ingestion._conversation import distinct, source_of, trajectory_id
from components.ingestion._feedback import FeedbackLine, apply
from components.ingestion._framing import MAX_BYTES, frames, samples
from components.ingestion._openai_lines import Line, conversation_of, read_line
from components.plugins import plugin
from components.protocols import Detection, RawRecord, Rejected
from components.records import Trajectory
from components.serial import digest

LOOKS_LIKE = re.compile(
    rb'(?=[\s\[]*\{\s*"(messages|request|id|model|object)").*"(messages|choices)"\s*:\s*\[',
    re.DOTALL,
)
"""The beginning of a record too long for the head."""


@plugin
class OpenAIChat:
    max_bytes: int = MAX_BYTES
    """Longest record that is read, in bytes."""

    def detect(self, head: bytes, name: str) -> Detection:
        found = samples(head)
        if any("nightshift" in payload for payload in found):
            return Detection(1.0, "lines of the recording proxy")
        for payload in found:
            if _can_read(payload):
                sure = 0.95 if "request" in payload else 0.8
                return Detection(sure, f"OpenAI chat, keys {sorted(payload)[:8]}")
        if not found and LOOKS_LIKE.match(head):
            return Detection(0.4, "contains a list of messages or choices")
        return Detection(0.0, "no chat messages")

    def read(self, stream: BinaryIO) -> Iterator[RawRecord | Rejected]:
        for frame in join_chunks(frames(stream, self.max_bytes)):
            if isinstance(frame, Rejected):
                yield frame
                continue
            try:
                line = read_line(frame.payload, "", frame.marks)
                conversation = conversation_of(frame.payload, line, frame.raw)
            except RecordError as error:
                text = frame.raw[:300].decode("utf-8", "replace")
                yield Rejected(str(error), frame.start, frame.end, frame.line, text)
                continue
            record_id = digest(f"openai_chat\n{conversation}\n".encode() + frame.raw)
            yield RawRecord(
                id=record_id,
                format="openai_chat",
                conversation_id=conversation,
                payload=frame.payload,
                start=frame.start,
                end=frame.end,
                line=frame.line,
                marks=frame.marks,
                meaning=replace(line, record_id=record_id),
            )

    def assemble(self, records: Sequence[RawRecord], agent: str) -> Trajectory:
        known = distinct(records)
        lines = [_meaning(record) for record in known]
        exchanges = [line for line in lines if isinstance(line, Exchange)]
        empty = Trajectory(
            id=trajectory_id(known, agent),
            agent=agent,
            turns=(),
            conversation_id=known[0].conversation_id,
            source=source_of(known),
            marks=("altered",) if any(record.marks for record in known) else (),
        )
        trajectory = join(exchanges, empty) if exchanges else empty
        return apply(trajectory, [line for line in lines if isinstance(line, FeedbackLine)])


def _meaning(record: RawRecord) -> Line:
    if isinstance(record.meaning, Exchange | FeedbackLine):
        return record.meaning
    return read_line(record.payload, record.id, record.marks)


def _can_read(payload: dict[str, object]) -> bool:
    try:
        read_line(payload, "")
    except RecordError:
        return False
    return True

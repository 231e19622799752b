"""Lines that are the chunks of a streamed answer -> one frame with the whole response.

    {"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Hel"}}]}
    {"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

Consecutive chunks with one id belong together. Chunks at the end of a log that have not come to a finish reason are still
being written: they are neither a record nor an error.
"""

from collections.abc import Iterable, Iterator

from components.ingestion._framing import Frame
from components.llm import merge_chunks
from components.protocols import Rejected


def join_chunks(frames: Iterable[Frame | Rejected]) -> Iterator[Frame | Rejected]:
    """The frames with every run of chunks replaced by one."""
    run: list[Frame] = []
    for frame in frames:
        chunk = frame if isinstance(frame, Frame) and _is_chunk(frame) else None
        if run and (chunk is None or chunk.payload.get("id") != run[-1].payload.get("id")):
            yield _whole(run)
            run = []
        if chunk is not None:
            run.append(chunk)
        else:
            yield frame
    if any(_finish_reason(frame) is not None for frame in run):
        yield _whole(run)


def _is_chunk(frame: Frame) -> bool:
    choices = frame.payload.get("choices")
    if "request" in frame.payload or "messages" in frame.payload or not isinstance(choices, list):
        return False
    is_named = frame.payload.get("object") == "chat.completion.chunk"
    return is_named or any(isinstance(c, dict) and "delta" in c for c in choices)


def _finish_reason(frame: Frame) -> object:
    choices = frame.payload["choices"]
    return choices[0].get("finish_reason") if choices and isinstance(choices[0], dict) else None


def _whole(run: list[Frame]) -> Frame | Rejected:
    raw = b"\n".join(frame.raw for frame in run)
    start, end, line = run[0].start, run[-1].end, run[0].line
    try:
        payload = {"response": merge_chunks([frame.payload for frame in run])}
    except (AttributeError, TypeError, KeyError) as error:
        text = raw[:300].decode("utf-8", "replace")
        return Rejected(f"chunks do not make a response: {error!r}", start, end, line, text)
    marks = ("altered /response",) if any(frame.marks for frame in run) else ()
    return Frame(payload, raw, start, end, line, marks)

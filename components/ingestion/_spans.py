"""OTLP/JSON spans: ids, times, attributes, duplicates, parents and clocks.

    {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "parentSpanId": "",
     "startTimeUnixNano": "1764694340818061307", "endTimeUnixNano": "1764694345916778373", "name": "chat",
     "attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "25"}}], "status": {"code": 2}}

Ids come in hex of either case (the specification) or base64 (some exporters) and are kept as lower-case hex; all-zero ids are
invalid. 64-bit integers are decimal strings. Unknown fields are ignored. A span is known by trace and span id together;
of two different versions the one that ends last counts and the others are attempts. A parent that never arrives makes a
root. Clocks of several machines disagree: a span that starts before its parent or after its parent's end, or ends before
it starts, is skewed; its raw stamps stay, and its duration is None when it is negative.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from components.errors import RecordError

TRACE_BYTES = 16
SPAN_BYTES = 8
STATUS_ERROR = 2


@dataclass(frozen=True, slots=True)
class Span:
    record_id: str
    trace_id: str
    id: str
    parent_id: str | None
    name: str
    start_ns: int | None
    end_ns: int | None
    attributes: dict[str, Any]
    events: tuple[tuple[str, dict[str, Any]], ...]
    resource: dict[str, Any]
    error: str | None
    """Message of an error status; empty text when it has none; None without error."""
    marks: tuple[str, ...] = ()

    @property
    def duration_ns(self) -> int | None:
        """None when a stamp is missing or the span ends before it starts."""
        if self.start_ns is None or self.end_ns is None or self.end_ns < self.start_ns:
            return None
        return self.end_ns - self.start_ns

    @property
    def operation(self) -> str:
        """`chat`, `execute_tool`, `invoke_agent`, ...; the first word of the name when unstated."""
        return str(self.attributes.get("gen_ai.operation.name") or self.name.split(" ")[0])


class Trace(NamedTuple):
    spans: dict[str, Span]
    """Span id -> the version that counts."""
    attempts: dict[str, int]
    """Span id -> number of other versions."""
    roots: tuple[str, ...]
    skewed: frozenset[str]


def read_id(text: Any, size: int) -> str | None:
    """A trace or span id as lower-case hex; None when there is none (empty or all zero).

    Raises:
        RecordError: neither hex nor base64 of `size` bytes.
    """
    if text is None or text == "":
        return None
    try:
        if len(text) == 2 * size:
            raw = bytes.fromhex(text)
        else:
            padded = text + "=" * (-len(text) % 4)
            raw = base64.b64decode(padded.replace("-", "+").replace("_", "/"), validate=True)
    except (TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise RecordError(f"id {text!r} is neither hex nor base64: {error}") from error
    if len(raw) != size:
        raise RecordError(f"id {text!r} has {len(raw)} bytes, expected {size}")
    return raw.hex() if any(raw) else None


def read_value(value: Any) -> Any:
    """An attribute value as plain data."""
    if not isinstance(value, Mapping):
        return value
    for key, content in value.items():
        if key == "intValue":
            return _int64(content)
        if key == "doubleValue":
            return float(content)
        if key == "arrayValue":
            return [read_value(item) for item in content.get("values") or ()]
        if key == "kvlistValue":
            return read_attributes(content.get("values"))
        if key in ("stringValue", "boolValue", "bytesValue"):
            return content
    return None


def read_attributes(raw: Any) -> dict[str, Any]:
    """Attributes as a dict; the flat form some exporters write is taken as it is."""
    if isinstance(raw, Mapping):
        return dict(raw)
    return {str(item["key"]): read_value(item.get("value")) for item in raw or ()}


def read_span(payload: Mapping[str, Any], record_id: str = "", marks: tuple[str, ...] = ()) -> Span:
    """A span from a record's payload, `{"resource": ..., "span": ...}`.

    Raises:
        RecordError: an id is missing, all zero or unreadable, or an attribute is.
    """
    raw, resource = payload["span"], payload.get("resource") or {}
    try:
        trace_id, span_id = (
            read_id(raw.get("traceId"), TRACE_BYTES),
            read_id(raw.get("spanId"), SPAN_BYTES),
        )
        if trace_id is None or span_id is None:
            raise RecordError(
                f"span {raw.get('name')!r} has trace id {raw.get('traceId')!r} and span id "
                f"{raw.get('spanId')!r}; missing and all-zero ids are invalid"
            )
        status = raw.get("status") or {}
        failed = status.get("code") in (STATUS_ERROR, "STATUS_CODE_ERROR")
        return Span(
            record_id,
            trace_id,
            span_id,
            read_id(raw.get("parentSpanId"), SPAN_BYTES),
            str(raw.get("name") or ""),
            _stamp(raw.get("startTimeUnixNano")),
            _stamp(raw.get("endTimeUnixNano")),
            read_attributes(raw.get("attributes")),
            tuple(
                (str(event.get("name")), read_attributes(event.get("attributes")))
                for event in raw.get("events") or ()
            ),
            read_attributes(resource.get("attributes")),
            str(status.get("message") or "") if failed else None,
            marks,
        )
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"unreadable span {str(raw)[:120]!r}: {error!r}") from error


def _stamp(value: Any) -> int | None:
    return _int64(value) if value not in (None, "", 0, "0") else None


def _int64(value: Any) -> int:
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"integer {value!r} does not fit 64 bits")
    return number


def merge(spans: Sequence[Span]) -> Trace:
    """One trace from spans in any order and repetition."""
    chosen: dict[str, Span] = {}
    versions: dict[str, set[bytes]] = {}
    for span in sorted(spans, key=lambda s: (s.end_ns or 0, s.start_ns or 0, s.record_id)):
        chosen[span.id] = span
        versions.setdefault(span.id, set()).add(_content(span))
    attempts = {key: len(seen) - 1 for key, seen in versions.items() if len(seen) > 1}
    roots = sorted(
        (span for span in chosen.values() if span.parent_id not in chosen),
        key=lambda span: (span.start_ns or 0, span.id),
    )
    skewed = frozenset(span.id for span in chosen.values() if _is_skewed(span, chosen))
    return Trace(chosen, attempts, tuple(span.id for span in roots), skewed)


def _content(span: Span) -> bytes:
    stamps = (span.name, span.start_ns, span.end_ns, span.parent_id, span.error)
    return orjson.dumps((stamps, span.attributes, span.events), option=orjson.OPT_SORT_KEYS)


def _is_skewed(span: Span, spans: Mapping[str, Span]) -> bool:
    if span.start_ns is None:
        return False
    if span.end_ns is not None and span.end_ns < span.start_ns:
        return True
    parent = spans.get(span.parent_id or "")
    if parent is None or parent.start_ns is None:
        return False
    is_late = parent.duration_ns is not None and span.start_ns > (parent.end_ns or 0)
    return span.start_ns < parent.start_ns or is_late

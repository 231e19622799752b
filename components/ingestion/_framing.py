"""Cuts a log into JSON objects with their byte ranges, holding one record at a time.

Three layouts, told apart by the first bytes:

    lines      one JSON object per line (also one object alone on one line)
    array      one JSON array; each element is a record
    document   one JSON object over several lines, or a server-sent event stream; the whole file is a record

Lines: blank lines and a byte-order mark are skipped, CRLF is accepted. A line that is not a JSON object, or is longer than
`max_bytes`, is `Rejected` once. A last line without newline counts when it is a complete object; otherwise it is still
being written: it is neither a record nor an error, and reading stops at its start. A reader that continues at a stored
offset sees lines, with line numbers counted from the start of the file.

Text that PostgreSQL cannot hold (NUL, half of a surrogate pair) becomes U+FFFD, and the places are marked
`altered <JSON pointer>`. Numbers that JSON does not have (NaN, Infinity) make a record unreadable.
"""

import io
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, NoReturn

import orjson

from components.protocols import Rejected

MAX_BYTES = 64 * 2**20
CHUNK = 2**16
SHOWN = 300
"""Characters of rejected text that are kept."""
BOM = b"\xef\xbb\xbf"
UNWRITABLE = re.compile("[\x00\ud800-\udfff]")
# Not with possessive quantifiers: before Python 3.11.5 they lose matches (python/cpython#106052).
TOKEN = re.compile(rb'[^"\[\]{}]+|"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{}]', re.DOTALL)
"""A run without brackets, a string, one bracket, or the quote of a string that does not end."""
SSE = (b"data:", b"event:", b":")


class Frame(NamedTuple):
    """One JSON object and where it stood."""

    payload: dict[str, Any]
    raw: bytes
    start: int
    end: int
    line: int | None
    marks: tuple[str, ...]


class _Unreadable(ValueError):
    """Why bytes are no record."""


def frames(stream: BinaryIO, max_bytes: int = MAX_BYTES) -> Iterator[Frame | Rejected]:
    """Every object of a seekable stream from its position on; bytes that are none come as `Rejected`."""
    offset = stream.tell()
    head = stream.read(CHUNK) if offset == 0 else b""
    layout = layout_of(head) if offset == 0 else "lines"
    line = _newlines_before(stream, offset)
    stream.seek(offset)
    if layout == "array":
        return _array(stream, max_bytes)
    if layout == "document":
        return _document(stream, max_bytes)
    return _lines(stream, offset, line, max_bytes)


def layout_of(head: bytes) -> str:
    """`lines`, `array` or `document`, judged by the first bytes. Only `lines` can be continued at an offset."""
    text = head.removeprefix(BOM).lstrip()
    if text[:1] == b"[":
        return "array"
    if text.startswith(SSE):
        return "document"
    lines = text.split(b"\n", 20)
    if text[:1] != b"{" or len(lines) == 1:
        return "lines"
    return "lines" if any(_is_object(line) for line in lines) else "document"


def samples(head: bytes, num: int = 5) -> list[dict[str, Any]]:
    """The first objects of a log, as far as its head shows them whole."""
    found: list[dict[str, Any]] = []
    for frame in frames(io.BytesIO(head)):
        if isinstance(frame, Frame):
            found.append(frame.payload)
        if len(found) == num:
            break
    return found


def _newlines_before(stream: BinaryIO, offset: int) -> int:
    stream.seek(0)
    count, left = 0, offset
    while left and (chunk := stream.read(min(CHUNK, left))):
        count += chunk.count(b"\n")
        left -= len(chunk)
    return count


# --- layouts ----------------------------------------------------------------------------------------------------------


def _lines(stream: BinaryIO, start: int, line: int, max_bytes: int) -> Iterator[Frame | Rejected]:
    while raw := stream.readline(max_bytes + 1):
        line += 1
        end = start + len(raw)
        if len(raw) > max_bytes and not raw.endswith(b"\n"):
            ended, size = _skip_line(stream)
            if not ended:
                return
            end += size
            yield _reject(f"line is longer than {max_bytes} bytes", raw, start, end, line)
        elif raw.strip(b"\xef\xbb\xbf \t\r\n"):
            frame = _frame(raw, start, end, line)
            if not raw.endswith(b"\n") and isinstance(frame, Rejected):
                return
            yield frame
        start = end


def _skip_line(stream: BinaryIO) -> tuple[bool, int]:
    size = 0
    while raw := stream.readline(CHUNK):
        size += len(raw)
        if raw.endswith(b"\n"):
            return True, size
    return False, size


def _document(stream: BinaryIO, max_bytes: int) -> Iterator[Frame | Rejected]:
    raw = stream.read(max_bytes + 1)
    if len(raw) > max_bytes:
        end = stream.seek(0, io.SEEK_END)
        yield _reject(f"document is longer than {max_bytes} bytes", raw, 0, end, 1)
    elif raw.removeprefix(BOM).lstrip().startswith(SSE):
        text = raw.decode("utf-8", "replace").replace("\0", "\ufffd")
        yield Frame({"response_sse": text}, raw, 0, len(raw), 1, ())
    else:
        yield _frame(raw, 0, len(raw), 1)


def _array(stream: BinaryIO, max_bytes: int) -> Iterator[Frame | Rejected]:
    """Elements that are too long, or an array that does not end, leave the rest of the file unread: one `Rejected`."""
    cutter = _Cutter()
    while chunk := stream.read(max(CHUNK, len(cutter.buffer))):
        for raw, start in cutter.feed(chunk):
            if raw:
                yield _frame(raw, start, start + len(raw), None)
        if len(cutter.buffer) > max_bytes:
            break
    end = stream.seek(0, io.SEEK_END)
    rest = cutter.buffer.strip(b", \t\r\n")
    if rest or not cutter.is_closed:
        reason = "text after the array" if cutter.is_closed else "array does not end"
        if len(cutter.buffer) > max_bytes:
            reason = f"array element is longer than {max_bytes} bytes"
        yield _reject(reason, cutter.buffer, cutter.base, end, None)


class _Cutter:
    """Finds the elements of one JSON array in a sequence of chunks."""

    def __init__(self) -> None:
        self.buffer = b""
        """Bytes after the last whole element."""
        self.base = 0
        """Offset of the buffer in the stream."""
        self.is_closed = False
        self._depth = 0
        self._scanned = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        self.buffer += chunk
        begin = 0
        for token in TOKEN.finditer(self.buffer, self._scanned):
            first = self.buffer[token.start()]
            if self.is_closed or token[0] == b'"':
                break
            self._scanned = token.end()
            if first not in b"[]{}":
                continue
            self._depth += 1 if first in b"[{" else -1
            if self._depth == 1 and first == ord("["):
                begin = token.end()
            elif self._depth <= 1 and first in b"]}":
                self.is_closed = self._depth == 0
                end = token.start() if self.is_closed else token.end()
                yield self._element(begin, end)
                begin = token.end()
        self.buffer, self.base = self.buffer[begin:], self.base + begin
        self._scanned -= begin

    def _element(self, begin: int, end: int) -> tuple[bytes, int]:
        raw = self.buffer[begin:end]
        bare = raw.lstrip(b", \t\r\n")
        return bare.rstrip(b", \t\r\n"), self.base + begin + len(raw) - len(bare)


# --- one record -------------------------------------------------------------------------------------------------------


def _frame(raw: bytes, start: int, end: int, line: int | None) -> Frame | Rejected:
    raw = raw.removeprefix(BOM).strip()
    try:
        payload, marks = _parse(raw)
    except _Unreadable as error:
        return _reject(str(error), raw, start, end, line)
    return Frame(payload, raw, start, end, line, marks)


def _reject(reason: str, raw: bytes, start: int, end: int, line: int | None) -> Rejected:
    text = raw[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN].replace("\0", "\ufffd")
    return Rejected(reason, start, end, line, text)


def _is_object(raw: bytes) -> bool:
    return raw[:1] == b"{" and isinstance(_frame(raw, 0, 0, None), Frame)


def _parse(raw: bytes) -> tuple[dict[str, Any], tuple[str, ...]]:
    marks: list[str] = []
    try:
        value = orjson.loads(raw)
        if b"\\u0000" in raw:
            value = _writable(value, "", marks)
    except orjson.JSONDecodeError:
        # orjson refuses half surrogate pairs and integers written oddly; the standard parser reads them.
        value = _writable(_parse_slowly(raw), "", marks)
    if not isinstance(value, dict):
        raise _Unreadable(f"expected a JSON object, got {type(value).__name__}")
    return value, tuple(marks)


def _parse_slowly(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8", "surrogatepass")
        return json.loads(text, parse_int=_integer, parse_constant=_no_number)
    except RecursionError as error:
        raise _Unreadable("not JSON: nested too deeply") from error
    except ValueError as error:
        raise _Unreadable(f"not JSON: {error}") from error


def _integer(text: str) -> int | float:
    value = int(text)
    return value if -(2**63) <= value < 2**64 else float(value)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _writable(value: Any, pointer: str, marks: list[str]) -> Any:
    if isinstance(value, str):
        clean = UNWRITABLE.sub("\ufffd", value)
        if clean != value:
            marks.append(f"altered {pointer or '/'}")
        return clean
    if isinstance(value, list):
        return [_writable(item, f"{pointer}/{place}", marks) for place, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            _writable(key, f"{pointer}/", marks): _writable(item, f"{pointer}/{key}", marks)
            for key, item in value.items()
        }
    return value

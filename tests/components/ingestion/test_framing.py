"""Cutting logs into objects: offsets, broken and unfinished lines, arrays, documents, unwritable text."""

import io

import pytest

from components.ingestion._framing import Frame, frames, layout_of
from components.protocols import Rejected


def cut(data: bytes, start: int = 0, max_bytes: int = 10_000) -> list[Frame | Rejected]:
    stream = io.BytesIO(data)
    stream.seek(start)
    return list(frames(stream, max_bytes))


def payloads(data: bytes) -> list[dict[str, object]]:
    found = cut(data)
    assert all(isinstance(frame, Frame) for frame in found), found
    return [frame.payload for frame in found if isinstance(frame, Frame)]


def test_growing_file_with_blank_crlf_broken_and_torn_lines() -> None:
    """Lines: 1 whole (8 bytes), 2 blank (1), 3 CRLF (9), 4 broken (7), 5 whole (8), 6 torn inside a character.

    Offsets: 8, 9, 18, 25, 33; the torn line starts at 33. When its rest arrives it is read once from there.
    """
    grown = b'{"n":1}\n' + b"\n" + b'{"n":3}\r\n' + b'{"n":4\n' + b'{"n":5}\n' + b'{"t":"caf\xc3'
    found = cut(grown)
    assert [(type(f).__name__, f.start, f.end, f.line) for f in found] == [
        ("Frame", 0, 8, 1),
        ("Frame", 9, 18, 3),
        ("Rejected", 18, 25, 4),
        ("Frame", 25, 33, 5),
    ]
    assert isinstance(found[2], Rejected)
    assert "not JSON" in found[2].reason
    later = cut(grown + b'\xa9"}\n', start=33)
    assert [(f.payload, f.line) for f in later if isinstance(f, Frame)] == [({"t": "café"}, 6)]
    assert len(later) == 1


def test_last_line_without_newline_counts_when_complete() -> None:
    assert [f.end for f in cut(b'{"n":1}\n{"n":2}')] == [8, 15]
    assert cut(b'{"n":1}\n{"n":2}\n', start=15) == []


def test_nothing() -> None:
    for empty in (b"", b"\n\n", b"\xef\xbb\xbf", b"  \r\n"):
        assert cut(empty) == []


def test_byte_order_mark() -> None:
    assert payloads(b'\xef\xbb\xbf{"n":1}\n{"n":2}\n') == [{"n": 1}, {"n": 2}]


def test_lines_that_are_no_objects_are_rejected_one_by_one() -> None:
    found = cut(b'{"n":1}\n5\n"text"\n{"x":NaN}\n\xff\xfe\n{"n":2}\n')
    reasons = [f.reason for f in found if isinstance(f, Rejected)]
    assert len(reasons) == 4
    assert "got int" in reasons[0]
    assert "got str" in reasons[1]
    assert "NaN is not a JSON number" in reasons[2]
    assert "utf-8" in reasons[3]
    assert [f.payload for f in found if isinstance(f, Frame)] == [{"n": 1}, {"n": 2}]


def test_too_long_a_line_is_rejected_once_and_passed_over() -> None:
    long = b'{"t":"' + b"x" * 200_000 + b'"}\n'
    found = cut(b'{"n":1}\n' + long + b'{"n":2}\n', max_bytes=100)
    assert [(type(f).__name__, f.start, f.end, f.line) for f in found] == [
        ("Frame", 0, 8, 1),
        ("Rejected", 8, 8 + len(long), 2),
        ("Frame", 8 + len(long), 16 + len(long), 3),
    ]
    assert isinstance(found[1], Rejected)
    assert len(found[1].text) <= 300
    unfinished = cut(b'{"n":1}\n' + long[:-1], max_bytes=100)
    assert len(unfinished) == 1


def test_deep_nesting_is_rejected() -> None:
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    found = cut(deep + b'{"n":1}\n', max_bytes=10**6)
    assert [type(f).__name__ for f in found] == ["Rejected", "Frame"]


def test_array_elements_have_their_own_bytes() -> None:
    data = b' [ {"a": "x],{\\"y"} ,\n{"b": [1, {"c": "}"}]}, 7, {"d": {}} ] \n'
    found = cut(data)
    assert [data[f.start : f.end] for f in found] == [
        b'{"a": "x],{\\"y"}',
        b'{"b": [1, {"c": "}"}]}',
        b'7, {"d": {}}',
    ]
    assert [type(f).__name__ for f in found] == ["Frame", "Frame", "Rejected"]


def test_array_over_many_chunks() -> None:
    """3,000 elements of about 100 bytes span five chunks of 64 kB; every one comes with its own bytes."""
    element = b'{"n": %d, "text": "quote \\" brace } and \xc3\xa9", "pad": "' + b"p" * 50 + b'"}'
    data = b"[" + b",\n ".join(element % n for n in range(3_000)) + b"]"
    found = cut(data)
    assert [f.payload["n"] for f in found if isinstance(f, Frame)] == list(range(3_000))
    assert all(data[f.start : f.end] == f.raw for f in found if isinstance(f, Frame))


def test_broken_arrays() -> None:
    assert cut(b"[]") == []
    torn = cut(b'[{"a":1}, {"b":')
    assert [type(f).__name__ for f in torn] == ["Frame", "Rejected"]
    assert isinstance(torn[1], Rejected)
    assert torn[1].reason == "array does not end"
    tail = cut(b'[{"a":1}] more')
    assert isinstance(tail[1], Rejected)
    assert tail[1].reason == "text after the array"
    bad = cut(b'[{"a":1}, {"b":nope}, {"c":3}]')
    assert [type(f).__name__ for f in bad] == ["Frame", "Rejected", "Frame"]
    long = cut(b'[{"a":1}, {"b":"' + b"x" * 200_000 + b'"}]', max_bytes=1_000)
    assert [type(f).__name__ for f in long] == ["Frame", "Rejected"]


def test_documents() -> None:
    assert payloads(b'{\n "a": 1,\n "b": {}\n}\n') == [{"a": 1, "b": {}}]
    assert payloads(b'{"a": 1}') == [{"a": 1}]
    assert [type(f).__name__ for f in cut(b'{\n "a": 1,\n')] == ["Rejected"]
    assert [type(f).__name__ for f in cut(b'{\n "a": "' + b"x" * 500 + b'"\n}', max_bytes=50)] == [
        "Rejected"
    ]
    assert payloads(b"data: {}\n\ndata: [DONE]\n\n") == [
        {"response_sse": "data: {}\n\ndata: [DONE]\n\n"}
    ]


@pytest.mark.parametrize(
    ("head", "layout"),
    [
        (b'{"a":1}\n{"b":2}\n', "lines"),
        (b'{"a":1\n{"b":2}\n', "lines"),
        (b'{"a": "no end yet', "lines"),
        (b'{\n  "a": {}\n}', "document"),
        (b"\n [1]", "array"),
        (b": hello\n\ndata: x", "document"),
        (b"", "lines"),
    ],
)
def test_layouts(head: bytes, layout: str) -> None:
    assert layout_of(head) == layout


def test_nul_and_half_pairs_become_stand_ins_and_are_marked() -> None:
    """A NUL in a value and in a key, half pairs, a whole pair, and the six characters of an escape as honest text."""
    line = (
        rb'{"m":[{"t":"head\u0000tail","k\u0000":1},{"t":"cut \ud83d"},{"t":"caf\udcb2"},'
        rb'{"t":"whole \ud83c\udf78"},{"t":"looks like \\u0000"}]}' + b"\n"
    )
    (frame,) = cut(line)
    assert isinstance(frame, Frame)
    texts = [item["t"] for item in frame.payload["m"]]
    assert texts == [
        "head\ufffdtail",
        "cut \ufffd",
        "caf\ufffd",
        "whole \U0001f378",
        "looks like \\u0000",
    ]
    assert "k\ufffd" in frame.payload["m"][0]
    assert frame.marks == (
        "altered /m/0/t",
        "altered /m/0/",
        "altered /m/1/t",
        "altered /m/2/t",
    )
    clean = cut(rb'{"t":"\\u0000 is an escape"}' + b"\n")
    assert [f.marks for f in clean if isinstance(f, Frame)] == [()]

"""Log files: how far each was read.

A grown file is read on from its offset; one that was rotated, cut or replaced is read from the start. The proof is the
content itself: the fingerprint covers the first and the last bytes of what was consumed, so a copy of the file on
another disk counts as the same file. Reading a file twice is harmless, because raw records are keyed by content. Every
agent reads for itself.
"""

import hashlib
import os
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO

from psycopg.rows import class_row

from store.clean import clean_text
from store.db import Conn

WINDOW = 4096

GET = """
select uri, agent, format, "offset", size, num_lines, fingerprint, read_at from log_file
where agent = %s and uri = %s
"""
PUT = """
insert into log_file (uri, agent, format, "offset", size, num_lines, fingerprint, read_at)
values (%s, %s, %s, %s, %s, %s, %s, %s)
on conflict (agent, uri) do update set format = excluded.format, "offset" = excluded."offset", size = excluded.size,
    num_lines = excluded.num_lines, fingerprint = excluded.fingerprint, read_at = excluded.read_at
"""


@dataclass(frozen=True, slots=True)
class LogFile:
    uri: str
    agent: str
    format: str
    """Name of the reader."""
    offset: int
    """Bytes consumed: the start of the first record that was not complete."""
    size: int
    """Size when it was read."""
    num_lines: int
    """Lines consumed."""
    fingerprint: str
    read_at: datetime


def fingerprint(stream: BinaryIO, offset: int) -> str:
    """Digest of the first and last bytes before the offset; leaves the stream where it was."""
    place = stream.tell()
    stream.seek(0)
    head = stream.read(min(WINDOW, offset))
    stream.seek(max(0, offset - WINDOW))
    tail = stream.read(min(WINDOW, offset))
    stream.seek(place)
    return hashlib.sha256(b"%d\n%d\n" % (offset, len(head)) + head + tail).hexdigest()


def resume(conn: Conn, agent: str, uri: str, stream: BinaryIO) -> LogFile | None:
    """Where this agent reads on, or None when the file is to be read from the start."""
    with conn.cursor(row_factory=class_row(LogFile)) as cursor:
        known = cursor.execute(GET, (agent, clean_text(uri))).fetchone()
    if known is None:
        return None
    place = stream.tell()
    size = stream.seek(0, os.SEEK_END)
    stream.seek(place)
    is_same = size >= known.offset and fingerprint(stream, known.offset) == known.fingerprint
    return known if is_same else None


def put(conn: Conn, file: LogFile) -> None:
    """Note how far a file was read; belongs into the transaction that writes its records."""
    conn.execute(
        PUT,
        (
            clean_text(file.uri),
            file.agent,
            file.format,
            file.offset,
            file.size,
            file.num_lines,
            file.fingerprint,
            file.read_at,
        ),
    )

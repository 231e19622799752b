"""Raw records: every record of every log as it stood there, once for each agent that reads it.

The key is the agent and the digest that the reader computed over format, conversation and content, so delivering the
same bytes again adds nothing. What PostgreSQL cannot hold is replaced (see `clean.py`) and the record marked `altered`.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from psycopg.errors import UniqueViolation

from components.protocols import RawRecord
from store.clean import clean_json, clean_text
from store.db import Conn, copy_rows, insert_new

ALTERED = "altered"
COLUMNS = (
    "id",
    "agent",
    "format",
    "conversation_id",
    "uri",
    "start_byte",
    "end_byte",
    "line",
    "payload",
    "marks",
)
OF_CONVERSATIONS = """
select id, format, conversation_id, payload, start_byte, end_byte, line, marks from raw_record
where conversation_id = any(%s) and agent = %s and format = %s and not id = any(%s)
order by conversation_id, uri, start_byte, id
"""
KNOWN = "select id from raw_record where agent = %s and id = any(%s)"
COUNT = "select count(*) from raw_record where agent = %s"


class Written(NamedTuple):
    num_new: int
    at_hand: list[RawRecord]
    """New records that are stored exactly as they were given, in their order: nobody needs to read them back."""
    conversations: list[str]
    """Conversations with new records, as they were given, in their order; the others are what they were."""


def put(conn: Conn, records: Iterable[RawRecord], uri: str, agent: str) -> Written:
    """Write the records of one file.

    Raises:
        RecordError: a payload is nested too deep or is not JSON.
    """
    unique = {record.id: record for record in records}
    known = {row[0] for row in conn.execute(KNOWN, (agent, list(unique)))}
    place = clean_text(uri)
    new = [record for key, record in unique.items() if key not in known]
    rows = [_row(record, place, agent) for record in new]
    grown = list(dict.fromkeys(record.conversation_id for record in new))
    try:
        with conn.transaction():
            copy_rows(conn, "raw_record", COLUMNS, rows)
    except UniqueViolation:  # another process wrote some of them meanwhile
        return Written(insert_new(conn, "raw_record", COLUMNS, rows), [], grown)
    pairs = zip(new, rows, strict=True)
    at_hand = [record for record, row in pairs if ALTERED not in row[-1]]
    return Written(len(rows), at_hand, grown)


def _row(record: RawRecord, uri: str, agent: str) -> tuple[Any, ...]:
    """The columns; the marks, which say whether anything had to be replaced, come last."""
    payload, altered = clean_json(record.payload)
    conversation_id = clean_text(record.conversation_id)
    altered = altered or conversation_id != record.conversation_id
    marks = [clean_text(mark) for mark in record.marks if mark != ALTERED]
    return (
        record.id,
        agent,
        record.format,
        conversation_id,
        uri,
        record.start,
        record.end,
        record.line,
        payload,
        [*marks, ALTERED] if altered or ALTERED in record.marks else marks,
    )


def of_conversations(
    conn: Conn,
    agent: str,
    format: str,
    conversation_ids: Sequence[str],
    at_hand: Sequence[RawRecord] = (),
) -> dict[str, list[RawRecord]]:
    """All records of these conversations, in file order, by conversation id; those at hand come last, as they are.

    A conversation id is found under the text it was given as or under its storable form.
    """
    wanted = {clean_text(given): given for given in conversation_ids}
    found: dict[str, list[RawRecord]] = {given: [] for given in conversation_ids}
    held = [record.id for record in at_hand]
    for row in conn.execute(OF_CONVERSATIONS, (list(wanted), agent, format, held)):
        record = RawRecord(*row[:-1], marks=tuple(row[-1]))
        given = wanted[record.conversation_id]
        found[given].append(dataclasses.replace(record, conversation_id=given))
    for record in at_hand:
        found[record.conversation_id].append(record)
    return found


def count(conn: Conn, agent: str) -> int:
    row = conn.execute(COUNT, (agent,)).fetchone()
    return row[0] if row else 0

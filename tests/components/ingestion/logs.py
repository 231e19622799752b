"""Small helpers for reader tests: lines in, records and trajectories out."""

import io
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from components.protocols import RawRecord, Reader, Rejected
from components.records import Trajectory
from components.serial import dump, load

REAL_LOGS = Path(__file__).parents[3] / "../shared/data/logs"


def jsonl(*lines: Any) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def read(reader: Reader, data: bytes) -> list[RawRecord | Rejected]:
    return list(reader.read(io.BytesIO(data)))


def records_of(reader: Reader, data: bytes) -> list[RawRecord]:
    found = read(reader, data)
    assert all(isinstance(item, RawRecord) for item in found), found
    return [item for item in found if isinstance(item, RawRecord)]


def conversations(reader: Reader, records: Sequence[RawRecord]) -> list[Trajectory]:
    """The trajectories, each checked to be the same for other orders, repetitions and stored records, and to survive
    storage."""
    by_id: dict[str, list[RawRecord]] = {}
    for record in records:
        by_id.setdefault(record.conversation_id, []).append(record)
    made = []
    for group in by_id.values():
        trajectory = reader.assemble(group, "desk")
        for order in itertools.islice(itertools.permutations(group), 6):
            assert reader.assemble([*order, group[0]], "desk") == trajectory
        assert load(Trajectory, dump(trajectory)) == trajectory
        stored = [replace(record, meaning=None) for record in group]
        assert reader.assemble(stored, "desk") == trajectory
        made.append(trajectory)
    return made


def one(reader: Reader, data: bytes) -> Trajectory:
    (trajectory,) = conversations(reader, records_of(reader, data))
    return trajectory


def real(path: str) -> bytes:
    file = REAL_LOGS / path
    if not file.exists():
        pytest.skip(f"the shared log collection is not here: {path}")
    return file.read_bytes()

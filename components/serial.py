"""Records as plain JSON, and back; digests of both.

Every record of `records.py` round-trips: `load(Trajectory, dump(trajectory)) == trajectory`. Digests are over canonical
JSON (sorted keys, no blanks), so equal content has an equal digest on every machine.
"""

import dataclasses
import functools
import hashlib
import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from components.errors import RecordError

T = TypeVar("T")


@functools.cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def dump(record: Any) -> dict[str, Any]:
    """A record as JSON-ready data."""
    return _adapter(type(record)).dump_python(record, mode="json")


def load(cls: type[T], data: Any) -> T:
    """A record from JSON-ready data.

    Raises:
        RecordError: the data is not such a record.
    """
    try:
        return _adapter(cls).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"not a {cls.__name__}: {place}: {first['msg']}") from error


def canonical(value: Any) -> bytes:
    """JSON bytes that depend on the content alone."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dump(value)
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_plain
    ).encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dump(value)
    return str(value)


def digest(value: Any) -> str:
    """SHA-256 (hex) of text, bytes, or the canonical JSON of anything else."""
    if isinstance(value, bytes):
        data = value
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
    else:
        data = canonical(value)
    return hashlib.sha256(data).hexdigest()

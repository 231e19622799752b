"""Which reader understands a log: every reader plug-in judges its first bytes, the most confident one wins."""

from typing import NamedTuple

from components.errors import RecordError
from components.ingestion._framing import layout_of
from components.plugins import make, names
from components.protocols import Detection, Reader

HEAD_BYTES = 65_536
"""How much of a file a reader is shown."""
LFS_POINTER = b"version https://git-lfs"


class Choice(NamedTuple):
    format: str
    """Name of the reader plug-in."""
    detection: Detection


def choose(head: bytes, name: str) -> Choice:
    """The format of a log. `head`: its first `HEAD_BYTES`; `name`: its file name. Ties go to the first by name.

    Raises:
        RecordError: no reader claims it.
    """
    if head.startswith(LFS_POINTER):
        raise RecordError(
            f"{name!r} is a Git LFS pointer, not a log; fetch the file with `git lfs pull`"
        )
    known = names("ingestion")
    judged = []
    for reader_name in known:
        reader: Reader = make("ingestion", reader_name)
        judged.append(Choice(reader_name, reader.detect(head, name)))
    best = max(judged, key=lambda choice: choice.detection.confidence, default=None)
    if best is None or best.detection.confidence <= 0:
        raise RecordError(
            f"no reader recognises {name!r}, which starts with {head[:60]!r}; "
            f"known formats: {', '.join(known)}"
        )
    return best


def can_continue(head: bytes) -> bool:
    """Whether a grown file can be read on from a stored offset; otherwise it is read whole again."""
    return layout_of(head) == "lines"

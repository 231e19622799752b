"""Freed memory goes back to the system.

glibc keeps what each thread freed in an arena of that thread. A training step frees gigabytes in pieces of many sizes,
so without this a process grows to the sum of its threads' largest moments. To be called between phases, not between
steps: the next step touches the same pages again.
"""

import ctypes
import functools
from collections.abc import Callable


def release() -> None:
    """Return unused pages of all arenas; does nothing where the C library has no `malloc_trim`."""
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], int]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return lambda _keep: 0

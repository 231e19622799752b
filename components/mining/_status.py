"""How a failure mode fares from night to night, from its counts alone.

Counts c_1 .. c_t, one per observed night, start with the first night that has a case. The status is replayed from there:

    new         t is the first night
    fixed       c = 0 on this night and the one before
    regressed   c > 0, and the mode was fixed, or it was mitigated and is back above half of its peak
    mitigated   c <= peak / 2, where peak is the largest earlier count since the mode was last new or regressed;
                a first night without cases is mitigated, not yet fixed
    growing     c >= 1.5 times the night before, and at least 2 more
    recurring   anything else

A night is observed when at least one case of any mode was mined; a night without any case says nothing (no traffic looks
the same as no failures), so it adds no count and changes no status. Counts are of cases, not rates: nights of very
different size do not compare.
Our choice: all four bounds.
"""

import itertools
from collections.abc import Sequence

from components.records import ModeStatus

GROWTH = 1.5
GROWTH_CASES = 2
SHARE = 0.5


def status_of(counts: Sequence[int]) -> ModeStatus:
    """The status after the last of these counts.

    Raises:
        ValueError: no counts, or the first one is zero.
    """
    if not counts or counts[0] <= 0:
        raise ValueError(f"counts must start with a night that has cases, got {list(counts)!r}")
    status: ModeStatus = "new"
    peak = counts[0]
    for before, count in itertools.pairwise(counts):
        status = _next(status, peak, before, count)
        peak = count if status == "regressed" else max(peak, count)
    return status


def _next(status: ModeStatus, peak: int, before: int, count: int) -> ModeStatus:
    if count == 0:
        return "fixed" if before == 0 else "mitigated"
    if status == "fixed" or (status == "mitigated" and count > SHARE * peak):
        return "regressed"
    if count <= SHARE * peak:
        return "mitigated"
    if count >= GROWTH * before and count - before >= GROWTH_CASES:
        return "growing"
    return "recurring"

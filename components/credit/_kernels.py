"""Formulas that credit plug-ins share.

Returns are one per trajectory of a group; None or NaN means that nobody scored it, and stays None: it is no zero, it
enters no mean, and its tokens get no credit.
Shapes: _G trajectories of one task, _T tokens of one sample.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Literal

from components.errors import RecordError
from components.records import Group, Sample

EPSILON = 1e-6
"""Added to the standard deviation, as in the reference code (volcengine/verl)."""


def group_baseline(
    returns_G: Sequence[float | None], mode: Literal["std", "mean", "loo"]
) -> tuple[float | None, ...]:
    """Returns relative to their group.

        std    (R - mean) / (std + 1e-6), sample standard deviation; a single return: R
        mean   R - mean
        loo    R - mean of the others = n / (n - 1) (R - mean); a single return: 0

    All returns equal gives exactly 0.0 (except a single one under `std`).
    """
    scored = [value for value in returns_G if is_scored(value)]
    if not scored:
        return (None,) * len(returns_G)
    return tuple(
        _relative(value, scored, mode) if is_scored(value) else None for value in returns_G
    )


def is_scored(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _relative(value: float | None, scored: Sequence[float | None], mode: str) -> float:
    assert value is not None, "only scored returns come here"
    known = [each for each in scored if each is not None]
    if any(math.isinf(each) for each in known):
        raise RecordError(f"returns must be finite, got {known!r}")
    if len(known) == 1 and mode == "std":
        return value
    if min(known) == max(known):
        return 0.0
    difference = value - fmean(known)
    if mode == "mean":
        return difference
    if mode == "loo":
        return difference * len(known) / (len(known) - 1)
    return difference / (stdev(known) + EPSILON)


def spread(
    group: Group, samples: Sequence[Sample], advantages_G: Sequence[float | None]
) -> list[Sample]:
    """Every sampled token of a trajectory gets its trajectory's advantage; no advantage, no stream.

    Raises:
        RecordError: a sample belongs to no trajectory of the group.
    """
    by_id = dict(zip((each.id for each in group.trajectories_G), advantages_G, strict=True))
    done: list[Sample] = []
    for sample in samples:
        if sample.trajectory_id not in by_id:
            raise RecordError(
                f"trajectory {sample.trajectory_id!r} is not in the group of task {group.task.id!r}: {sorted(by_id)}"
            )
        advantage = by_id[sample.trajectory_id]
        stream = (
            None
            if advantage is None
            else tuple(advantage if sampled else 0.0 for sampled in sample.action_mask_T)
        )
        done.append(replace(sample, advantages_T=stream))
    return done

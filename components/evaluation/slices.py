"""No slice may become worse: the paired difference of every slice, judged together.

A slice (a skill, a failure mode, an older suite) is *harmed* when the challenger is worse on it by more than a
tolerance and the one-sided exact flip test says so after Holm's correction over all slices judged: sort the p-values,
compare the i-th smallest with alpha / (m - i + 1), stop at the first that fails. So the chance of blaming any harmless
slice stays at alpha however many slices there are; the price is that one slice among many needs stronger evidence.

A slice with fewer than `min_tasks` scored tasks is not judged and is named. Slices may overlap: Holm assumes nothing
about dependence.
Source: Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import NamedTuple

from components.evaluation.paired import flip_test


class Slice(NamedTuple):
    name: str
    num_tasks: int
    """Tasks scored in both arms."""
    difference: float
    """Challenger minus champion."""
    p_worse: float


class Harm(NamedTuple):
    judged: tuple[Slice, ...]
    harmed: tuple[Slice, ...]
    too_small: tuple[str, ...]


def judge_slices(
    gains: Mapping[str, Fraction],
    slices: Mapping[str, Sequence[str]],
    min_tasks: int,
    alpha: float,
    tolerance: float = 0.0,
) -> Harm:
    """Which slices are worse. `gains`: task -> challenger minus champion."""
    judged: list[Slice] = []
    too_small: list[str] = []
    for name in sorted(slices):
        own = [gains[task] for task in dict.fromkeys(slices[name]) if task in gains]
        if len(own) < max(min_tasks, 1):
            too_small.append(name)
            continue
        # The flips are drawn only when the scores lie on no grid; the seed is fixed so that a decision can be repeated.
        p_worse = flip_test(own, Random(0)).worse
        judged.append(Slice(name, len(own), float(sum(own, Fraction(0)) / len(own)), p_worse))
    significant = holm([item.p_worse for item in judged], alpha)
    harmed = [
        item
        for item, is_worse in zip(judged, significant, strict=True)
        if is_worse and item.difference < -tolerance
    ]
    return Harm(tuple(judged), tuple(harmed), tuple(too_small))


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses are rejected, with the chance of any false rejection at most alpha."""
    rejected = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for rank, place in enumerate(order):
        if p_values[place] > alpha / (len(p_values) - rank):
            break
        rejected[place] = True
    return rejected

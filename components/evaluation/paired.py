"""Two policies on the same tasks and seeds: the paired difference, an exact test, and a 95% interval.

    d_t = mean over seeds of (challenger - champion)       per task t, seeds scored in both arms only
    difference = mean over tasks of d_t

Test: sign-flip permutation. If the arms are interchangeable within a task, every d_t is as likely as its negative, so
the sum's distribution over all 2^n flips is the reference; with one seed and 0/1 scores this is exactly McNemar's test.
It is computed exactly (not sampled) whenever the differences lie on a grid of at most 50,000 points, which rates over a
few seeds always do; otherwise from 20,000 random flips, counting the observed one. Interval: percentile bootstrap over
tasks, with the seeds averaged inside, since tasks and not seeds are what a new night draws anew.

Degenerate cases: a task without a seed that scored both arms is excluded and named; no task left gives difference 0,
interval [-1, 1] and p = 1; no task that differs gives p = 1; equal differences everywhere give an interval of one
point, which says nothing for few tasks, so a decision needs the test and a minimum of tasks beside it.
Shapes: _P tasks.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import NamedTuple

import numpy as np

from components.records import PairedStats

Scores = Mapping[str, Sequence[float | None]]
"""Task id -> one score per seed, None where not scored."""

MAX_GRID = 50_000
NUM_FLIPS = 20_000


class Comparison(NamedTuple):
    stats: PairedStats
    unscored: tuple[str, ...]
    """Tasks left out of both arms, because no seed scored both."""


class Differences(NamedTuple):
    """Challenger minus champion, seeds averaged."""

    by_task: dict[str, Fraction]
    unscored: tuple[str, ...]
    num_seeds: int
    """Most seeds that a task was compared on."""


def differences(champion: Scores, challenger: Scores) -> Differences:
    """Per-task differences over the seeds that scored both.

    Raises:
        ValueError: the arms hold other tasks or another number of seeds for one, or a score is not finite.
    """
    if champion.keys() != challenger.keys():
        odd = sorted(champion.keys() ^ challenger.keys())
        raise ValueError(f"both arms must hold the same tasks; {odd[0]!r} is in one only")
    by_task: dict[str, Fraction] = {}
    unscored: list[str] = []
    num_seeds = 0
    for task in sorted(champion):
        before, after = champion[task], challenger[task]
        if len(before) != len(after):
            raise ValueError(
                f"task {task!r} has {len(before)} seeds for the champion, {len(after)} for the challenger"
            )
        gains = [
            _exact(task, b) - _exact(task, a)
            for a, b in zip(before, after, strict=True)
            if _both(a, b)
        ]
        if gains:
            by_task[task] = sum(gains, Fraction(0)) / len(gains)
            num_seeds = max(num_seeds, len(gains))
        else:
            unscored.append(task)
    return Differences(by_task, tuple(unscored), num_seeds)


def _both(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None


def _exact(task: str, score: float | None) -> Fraction:
    if score is None or not math.isfinite(score):
        raise ValueError(f"task {task!r} has the score {score!r}; expected a finite number or None")
    return Fraction(score)


def compare(
    champion: Scores, challenger: Scores, rng: Random, num_resamples: int = 10_000
) -> Comparison:
    """Paired statistics of two arms."""
    found = differences(champion, challenger)
    gains = list(found.by_task.values())
    low, high = bootstrap_interval([float(gain) for gain in gains], rng, num_resamples)
    stats = PairedStats(
        num_tasks=len(gains),
        num_seeds=found.num_seeds,
        difference=float(sum(gains, Fraction(0)) / len(gains)) if gains else 0.0,
        low=low,
        high=high,
        p_value=flip_test(gains, rng).two_sided,
        wins=sum(gain > 0 for gain in gains),
        losses=sum(gain < 0 for gain in gains),
    )
    return Comparison(stats, found.unscored)


class FlipTest(NamedTuple):
    """Chances, under interchangeable arms, of a sum at least as extreme as the one seen."""

    two_sided: float
    better: float
    """One-sided: so large or larger."""
    worse: float
    """One-sided: so small or smaller."""


def flip_test(gains: Sequence[Fraction], rng: Random) -> FlipTest:
    """Sign-flip permutation test of per-task differences."""
    moved = [gain for gain in gains if gain != 0]
    if not moved:
        return FlipTest(1.0, 1.0, 1.0)
    unit = math.lcm(*(gain.denominator for gain in moved))
    steps = [int(gain * unit) for gain in moved]
    shared = math.gcd(*steps)
    steps = [step // shared for step in steps]
    if sum(abs(step) for step in steps) <= MAX_GRID:
        return _exact_flips(steps)
    return _sampled_flips([float(gain) for gain in moved], rng)


def _exact_flips(steps: Sequence[int]) -> FlipTest:
    """All 2^n sums by convolution; index 0 stands for the sum of all negatives."""
    reach = sum(abs(step) for step in steps)
    chances = np.zeros(2 * reach + 1)
    chances[0] = 1.0
    for step in (abs(step) for step in steps):
        shifted = np.zeros_like(chances)
        shifted[2 * step :] = chances[: -2 * step]
        chances = (chances + shifted) / 2
    seen = sum(steps)
    better = float(chances[reach + seen :].sum())
    worse = float(chances[: reach + seen + 1].sum())
    far = abs(seen)
    both = (
        1.0 if far == 0 else float(chances[: reach - far + 1].sum() + chances[reach + far :].sum())
    )
    return FlipTest(min(both, 1.0), min(better, 1.0), min(worse, 1.0))


def _sampled_flips(gains_P: Sequence[float], rng: Random) -> FlipTest:
    draws = np.random.default_rng(rng.getrandbits(64))
    values_P = np.asarray(gains_P)
    seen = float(values_P.sum())
    slack = 1e-9 * float(np.abs(values_P).sum())
    signs = (draws.integers(0, 2, (100, len(values_P))) * 2 - 1 for _ in range(NUM_FLIPS // 100))
    sums = np.concatenate([block @ values_P for block in signs])

    def share(hits: int) -> float:
        return (hits + 1) / (NUM_FLIPS + 1)

    return FlipTest(
        share(int((np.abs(sums) >= abs(seen) - slack).sum())),
        share(int((sums >= seen - slack).sum())),
        share(int((sums <= seen + slack).sum())),
    )


def bootstrap_interval(
    values_P: Sequence[float], rng: Random, num_resamples: int = 10_000
) -> tuple[float, float]:
    """95% percentile interval of the mean over tasks; [-1, 1] when there is none.

    Resampling n tasks with replacement is a multinomial draw over the distinct values, which is what is drawn.
    """
    if not values_P:
        return (-1.0, 1.0)
    distinct, counts = np.unique(np.asarray(values_P, dtype=float), return_counts=True)
    draws = np.random.default_rng(rng.getrandbits(64))
    taken = draws.multinomial(len(values_P), counts / len(values_P), size=num_resamples)
    means = taken @ distinct / len(values_P)
    low, high = np.quantile(means, (0.025, 0.975))
    return (float(low), float(high))

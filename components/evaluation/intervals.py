"""How well one policy does, with a 95% interval.

    wilson    k successes of n independent trials:  (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n),  z = 1.96
    rate_of   several seeds per task: mean over tasks of the mean over seeds; interval by bootstrap over tasks

Wilson is for one trial per task; with more, trials of a task hang together and it would be too narrow. `rate_of` takes
Wilson when every task has one 0/1 score, and when all tasks have the same rate (a bootstrap would give a point), and
the bootstrap otherwise.
Degenerate cases: nothing scored gives rate None and [0, 1]; tasks without any score are excluded and counted.
"""

import math
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from components.evaluation.paired import Scores, bootstrap_interval

Z95 = NormalDist().inv_cdf(0.975)


class Rate(NamedTuple):
    rate: float | None
    low: float
    high: float
    num_tasks: int
    num_unscored: int
    """Tasks without any score."""


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """95% Wilson interval; [0, 1] for no trial.

    Raises:
        ValueError: more successes than trials, or a negative count.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"expected 0 <= successes <= trials, got {successes!r} of {trials!r}")
    if trials == 0:
        return (0.0, 1.0)
    share, square = successes / trials, Z95**2
    middle = share + square / (2 * trials)
    reach = Z95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    scale = 1 + square / trials
    # At both ends the formula gives exactly 0 and 1, up to rounding.
    low = 0.0 if successes == 0 else (middle - reach) / scale
    high = 1.0 if successes == trials else (middle + reach) / scale
    return (low, high)


def rate_of(scores: Scores, rng: Random, num_resamples: int = 10_000) -> Rate:
    """The mean score of one arm over its tasks."""
    means_P: list[float] = []
    num_trials = 0
    for row in scores.values():
        scored = [score for score in row if score is not None]
        if scored:
            means_P.append(math.fsum(scored) / len(scored))
            num_trials = max(num_trials, len(scored))
    num_unscored = len(scores) - len(means_P)
    if not means_P:
        return Rate(None, 0.0, 1.0, 0, num_unscored)
    rate = math.fsum(means_P) / len(means_P)
    single = num_trials == 1 and set(means_P) <= {0.0, 1.0}
    if single or len(set(means_P)) == 1:
        low, high = wilson(min(max(rate, 0.0), 1.0) * len(means_P), len(means_P))
    else:
        low, high = bootstrap_interval(means_P, rng, num_resamples)
    return Rate(rate, low, high, len(means_P), num_unscored)

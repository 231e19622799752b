"""pass^k and pass@k: what k tries of one task come to, estimated without bias from n >= k tries with c successes.

    pass^k = C(c, k) / C(n, k)              all k succeed: reliability
    pass@k = 1 - C(n - c, k) / C(n, k)      at least one succeeds: reach

Source: arXiv 2406.12045 (tau-bench, pass^k); arXiv 2107.03374, section 2.1 (pass@k).
Over tasks: the mean over the tasks with at least k scored tries; the others are counted. More tries asked for than made
is an error for one task, and a mean over no task is None.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from components.evaluation.paired import Scores


def pass_hat_k(num_tries: int, num_successes: int, k: int) -> float:
    """The chance that k of these tries, drawn without replacement, all succeed."""
    _check(num_tries, num_successes, k)
    return math.comb(num_successes, k) / math.comb(num_tries, k)


def pass_at_k(num_tries: int, num_successes: int, k: int) -> float:
    """The chance that at least one of k of these tries, drawn without replacement, succeeds."""
    _check(num_tries, num_successes, k)
    return 1 - math.comb(num_tries - num_successes, k) / math.comb(num_tries, k)


def _check(num_tries: int, num_successes: int, k: int) -> None:
    if not 1 <= k <= num_tries or not 0 <= num_successes <= num_tries:
        raise ValueError(
            f"expected 1 <= k <= tries and 0 <= successes <= tries, "
            f"got k = {k!r}, {num_successes!r} successes, {num_tries!r} tries"
        )


class OverTasks(NamedTuple):
    value: float | None
    num_tasks: int
    num_short: int
    """Tasks with fewer than k scored tries."""


def over_tasks(
    scores: Scores, k: int, estimate: Callable[[int, int, int], float] = pass_hat_k
) -> OverTasks:
    """Mean over tasks; a try succeeds at score 1."""
    values: list[float] = []
    for row in scores.values():
        tries = [score for score in row if score is not None]
        if len(tries) >= k:
            values.append(estimate(len(tries), sum(score >= 1.0 for score in tries), k))
    mean = math.fsum(values) / len(values) if values else None
    return OverTasks(mean, len(values), len(scores) - len(values))

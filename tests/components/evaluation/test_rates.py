"""Intervals of one arm, pass^k and pass@k, and sample sizes."""

from random import Random

import pytest

from components.evaluation.intervals import rate_of, wilson
from components.evaluation.pass_k import over_tasks, pass_at_k, pass_hat_k
from components.evaluation.sample_size import detectable_difference, min_tasks


def test_wilson() -> None:
    """41 of 50: 82% with 69% to 90%. 0 of 10: z^2 / (n + z^2) = 3.8415 / 13.8415 = .2775."""
    low, high = wilson(41, 50)
    assert (round(low, 2), round(high, 2)) == (0.69, 0.90)
    assert wilson(0, 10) == (0.0, pytest.approx(3.841459 / 13.841459))
    assert wilson(10, 10) == (pytest.approx(10 / 13.841459), 1.0)
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


def test_single_trials_use_wilson() -> None:
    scores = {f"t{place}": (float(place < 41),) for place in range(50)} | {"unscored": (None,)}
    rate = rate_of(scores, Random(0))
    assert (rate.rate, rate.num_tasks, rate.num_unscored) == (0.82, 50, 1)
    assert (rate.low, rate.high) == wilson(41, 50)


def test_seeds_are_averaged_inside_tasks() -> None:
    """100 tasks with rates 1 and 0 in equal shares, 3 seeds each: standard error sqrt(.25/100) = .05, as if 100 trials.

    Taking the 300 trials as independent would give .029.
    """
    rate = rate_of({f"t{place}": (float(place % 2),) * 3 for place in range(100)}, Random(0))
    assert rate.rate == 0.5
    assert rate.high - rate.low == pytest.approx(2 * 1.96 * 0.05, abs=0.01)


def test_degenerate_rates() -> None:
    assert rate_of({}, Random(0)) == (None, 0.0, 1.0, 0, 0)
    assert rate_of({"a": (None, None)}, Random(0)) == (None, 0.0, 1.0, 0, 1)
    everything = rate_of({f"t{place}": (1.0, 1.0) for place in range(10)}, Random(0))
    assert (everything.low, everything.high) == wilson(10, 10)


def test_pass_k_of_one_task() -> None:
    """n = 4, c = 3: C(3,k)/C(4,k) = 3/4, 3/6, 1/4, 0. At least one of two: 1 - C(1,2)/C(4,2) = 1."""
    assert [pass_hat_k(4, 3, k) for k in (1, 2, 3, 4)] == [0.75, 0.5, 0.25, 0.0]
    assert pass_at_k(4, 3, 2) == 1.0
    assert pass_at_k(4, 1, 2) == 0.5


@pytest.mark.parametrize(("n", "c", "k"), [(4, 3, 5), (4, 3, 0), (4, 5, 1), (0, 0, 1), (4, -1, 1)])
def test_pass_k_refuses(n: int, c: int, k: int) -> None:
    for estimate in (pass_hat_k, pass_at_k):
        with pytest.raises(ValueError, match="expected 1 <= k <= tries"):
            estimate(n, c, k)


def test_pass_k_over_tasks() -> None:
    """pass^2: 1 and C(1,2)/C(3,2) = 0 give 1/2; the task with one scored try is counted as short."""
    scores = {"a": (1.0, 1.0, None), "b": (1.0, 0.0, 0.0), "c": (1.0, None, None)}
    assert over_tasks(scores, 2) == (0.5, 2, 1)
    assert over_tasks(scores, 2, pass_at_k) == (pytest.approx((1 + 2 / 3) / 2), 2, 1)
    assert over_tasks({}, 1) == (None, 0, 0)


def test_min_tasks() -> None:
    """d = .2, q = .4: (1.95996 x .63246 + .84162 x .6)^2 / .04 = (1.23959 + .50497)^2 / .04 = 76.09.

    d = .1, q = .3: (1.95996 x .54772 + .84162 x .53852)^2 / .01 = (1.07352 + .45323)^2 / .01 = 233.1.
    """
    assert min_tasks(0.2, 0.4) == 77
    assert min_tasks(0.1, 0.3) == 234
    assert min_tasks(-0.1, 0.3) == 234
    assert min_tasks(0.1, 0.3, power=0.9) > 234


@pytest.mark.parametrize(("difference", "rate"), [(0.0, 0.3), (0.4, 0.3), (0.1, 1.2)])
def test_min_tasks_refuses(difference: float, rate: float) -> None:
    with pytest.raises(ValueError, match="discordant rate <= 1"):
        min_tasks(difference, rate)


def test_detectable_difference_inverts_min_tasks() -> None:
    gap = detectable_difference(234, 0.3)
    assert gap is not None
    assert min_tasks(gap, 0.3) <= 234 < min_tasks(gap - 0.001, 0.3)
    assert detectable_difference(3, 0.2) is None

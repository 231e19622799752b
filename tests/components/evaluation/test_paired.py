"""Paired statistics, with every expected number counted by hand."""

from fractions import Fraction
from random import Random

import pytest

from components.evaluation.paired import bootstrap_interval, compare, differences, flip_test
from components.evaluation.slices import holm, judge_slices

HALF = Fraction(1, 2)


def arm(*rows: tuple[float | None, ...]) -> dict[str, tuple[float | None, ...]]:
    return {f"t{place:03d}": row for place, row in enumerate(rows)}


def test_one_seed_and_binary_scores_is_mcnemar() -> None:
    """12 better, 3 worse, 5 ties: 576/32768 one-sided (455 + 105 + 15 + 1 of 2^15), twice that two-sided.

    As few as 12 better has the chance 1 - P(13 or more) = 1 - (105 + 15 + 1) / 32768.
    """
    gains = [Fraction(1)] * 12 + [Fraction(-1)] * 3 + [Fraction(0)] * 5
    found = flip_test(gains, Random(0))
    assert found.better == pytest.approx(576 / 32768)
    assert found.two_sided == pytest.approx(1152 / 32768)
    assert found.worse == pytest.approx(1 - 121 / 32768)


def test_seeds_averaged_inside_tasks() -> None:
    """Gains 1, 1/2, -1/2 sum to 1. The eight sums are 2, 1, 1, 0, 0, -1, -1, -2: three are >= 1, six as far as 1."""
    found = flip_test([Fraction(1), HALF, -HALF], Random(0))
    assert found.better == pytest.approx(3 / 8)
    assert found.two_sided == pytest.approx(6 / 8)
    assert found.worse == pytest.approx(7 / 8)


def test_scores_on_no_grid_are_sampled() -> None:
    """Ten distinct positive gains: only the flip that flips nothing is as high, 1/1024; sampled within 0.001."""
    gains = [Fraction(0.1 + place * 0.01234567) for place in range(10)]
    found = flip_test(gains, Random(1))
    assert found.better == pytest.approx(1 / 1024, abs=0.001)
    assert found.two_sided == pytest.approx(2 / 1024, abs=0.0015)
    assert found.worse == 1.0


def test_no_difference() -> None:
    assert flip_test([Fraction(0)] * 4, Random(0)) == (1.0, 1.0, 1.0)
    assert flip_test([], Random(0)) == (1.0, 1.0, 1.0)
    assert flip_test([Fraction(1), Fraction(-1)], Random(0)).two_sided == 1.0


def test_unscored_is_excluded_from_both_arms_and_named() -> None:
    """t000 keeps the seed scored in both (1 - 0); t001 has none; t002: mean(1, 0) - mean(0, 0) = 1/2."""
    champion = arm((0.0, None), (None, 1.0), (0.0, 0.0))
    challenger = arm((1.0, 1.0), (1.0, None), (1.0, 0.0))
    found = differences(champion, challenger)
    assert found.by_task == {"t000": 1, "t002": HALF}
    assert found.unscored == ("t001",)
    comparison = compare(champion, challenger, Random(0))
    assert comparison.unscored == ("t001",)
    stats = comparison.stats
    assert (stats.num_tasks, stats.num_seeds, stats.difference) == (2, 2, 0.75)
    assert (stats.wins, stats.losses) == (2, 0)
    assert stats.p_value == pytest.approx(0.5)


@pytest.mark.parametrize("rows", [(), ((None,), (None,))])
def test_nothing_scored(rows: tuple[tuple[None], ...]) -> None:
    stats = compare(arm(*rows), arm(*rows), Random(0)).stats
    assert (stats.num_tasks, stats.difference, stats.low, stats.high, stats.p_value) == (
        0,
        0.0,
        -1.0,
        1.0,
        1.0,
    )


def test_one_class_only() -> None:
    """Both arms solve everything: no difference. Champion none, challenger all: p = 2 / 2^n."""
    won = arm(*[(1.0,)] * 10)
    same = compare(won, won, Random(0)).stats
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    all_better = compare(arm(*[(0.0,)] * 10), won, Random(0)).stats
    assert (all_better.difference, all_better.wins) == (1.0, 10)
    assert all_better.p_value == pytest.approx(2 / 1024)


@pytest.mark.parametrize(
    ("champion", "challenger", "message"),
    [
        ({"a": (1.0,)}, {"b": (1.0,)}, "'a' is in one only"),
        ({"a": (1.0,)}, {"a": (1.0, 0.0)}, "1 seeds for the champion, 2 for the challenger"),
        ({"a": (1.0,)}, {"a": (float("nan"),)}, "score nan; expected a finite number or None"),
    ],
)
def test_arms_that_cannot_be_compared(
    champion: dict[str, tuple[float]], challenger: dict[str, tuple[float]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compare(champion, challenger, Random(0))


def test_the_interval_covers_what_the_normal_law_says() -> None:
    """400 tasks, 300 at 1 and 100 at 0: mean .75, standard error sqrt(.75 x .25 / 400) = .02165, times 1.96 = .0424."""
    low, high = bootstrap_interval([1.0] * 300 + [0.0] * 100, Random(3))
    assert low == pytest.approx(0.75 - 0.0424, abs=0.005)
    assert high == pytest.approx(0.75 + 0.0424, abs=0.005)


def test_the_same_generator_gives_the_same_interval() -> None:
    values = [0.0, 0.5, 1.0, 1.0]
    assert bootstrap_interval(values, Random(5)) == bootstrap_interval(values, Random(5))


def test_holm() -> None:
    """m = 4 at .05: .01 <= .0125, .013 <= .0167, .03 > .025 stops; .04 would pass alone and does not."""
    assert holm([0.04, 0.01, 0.03, 0.013], 0.05) == [False, True, False, True]
    assert holm([], 0.05) == []
    assert holm([0.05], 0.05) == [True]


def slice_gains(losses: int, num: int, prefix: str) -> dict[str, Fraction]:
    return {f"{prefix}{place}": Fraction(-1 if place < losses else 0) for place in range(num)}


def test_one_bad_slice_among_many_is_found() -> None:
    """Nine losses in nine: p = 1/512 = .00195 <= .05/5. Six losses: p = 1/64 = .0156 > .01, though below .05."""
    gains = {key: gain for name in "abcd" for key, gain in slice_gains(0, 20, name).items()}
    bad = slice_gains(9, 20, "e")
    slices = {name: [f"{name}{place}" for place in range(20)] for name in "abcde"}
    harm = judge_slices({**gains, **bad}, slices, 10, 0.05)
    assert [item.name for item in harm.harmed] == ["e"]
    assert harm.harmed[0].p_worse == pytest.approx(1 / 512)
    assert harm.harmed[0].difference == pytest.approx(-9 / 20)
    mild = judge_slices({**gains, **slice_gains(6, 20, "e")}, slices, 10, 0.05)
    assert mild.harmed == ()
    alone = judge_slices(slice_gains(6, 20, "e"), {"e": slices["e"]}, 10, 0.05)
    assert [item.name for item in alone.harmed] == ["e"]


def test_small_slices_are_named_and_not_judged() -> None:
    """Slice `a` names an unscored task and one task twice; three of its tasks are scored."""
    gains = slice_gains(3, 3, "a")
    harm = judge_slices(gains, {"a": ["a0", "a1", "a2", "a2", "unscored"], "b": []}, 4, 0.05)
    assert (harm.judged, harm.harmed, harm.too_small) == ((), (), ("a", "b"))


def test_a_fall_within_the_tolerance_is_no_harm() -> None:
    """Ten losses of 1,000 tasks: a certain fall (p = 1/1024) of exactly one point."""
    gains = slice_gains(10, 1000, "s")
    slices = {"s": list(gains)}
    assert judge_slices(gains, slices, 10, 0.05, tolerance=0.01).harmed == ()
    assert judge_slices(gains, slices, 10, 0.05, tolerance=0.009).harmed != ()

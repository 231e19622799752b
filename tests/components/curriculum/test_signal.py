from collections import Counter
from random import Random

import pytest

from components.curriculum.signal import Signal
from components.errors import ConfigError
from components.plugins import make
from components.records import Group, Task, Trajectory


def task(id: str, *skills: str) -> Task:
    return Task(id, "words", "toy", {}, required_skills=skills)


def group(*rewards: float | None) -> Group:
    trajectories = tuple(Trajectory(str(n), "a", ()) for n in range(len(rewards)))
    return Group(task("t"), trajectories, {"verified": rewards})


def test_expected_rate_prefers_task_and_kind_then_skills_then_the_prior() -> None:
    """Task 0.9 with kind 0.5: 0.7. Without either, skills 0.2 and 0.6 are known, `c` is not: (0.2 + 0.6) / 2 = 0.4."""
    rates = {"t1": 0.9, "a": 0.2, "b": 0.6, "{b, c}": 0.5, "{b, d}": 0.0}
    assert Signal().expected(task("t1", "a", "b"), rates) == 0.9
    assert Signal().expected(task("t1", "b", "c"), rates) == pytest.approx(0.7)
    assert Signal().expected(task("t2", "b", "c"), rates) == 0.5
    assert Signal().expected(task("t2", "b", "d"), rates) == 0.0, (
        "a shared skill hides no hopeless kind"
    )
    assert Signal().expected(task("t2", "a", "b", "c"), rates) == pytest.approx(0.4)
    assert Signal(prior=0.7).expected(task("t3", "c"), rates) == 0.7


def test_uncertain_tasks_are_drawn_in_proportion_to_their_signal() -> None:
    """One draw of two, groups of two: 2 p (1-p) (1-p) + floor is 0.25 + 0.02 = 0.27 at p = 0.5 and 0 + 0.02 at p = 1.

    The uncertain one must come with probability 0.27 / 0.29 = 0.931; over 4,000 draws the standard deviation is
    sqrt(0.931 * 0.069 / 4000) = 0.004, so 0.915 to 0.947 holds with four of them.
    """
    tasks = [task("sure", "known"), task("open", "half")]
    rates = {"known": 1.0, "half": 0.5}
    rng = Random(7)
    first = Counter(Signal(group_size=2).select(tasks, 1, rates, rng)[0].id for _ in range(4_000))
    assert 0.915 < first["open"] / 4_000 < 0.947


def test_of_two_kinds_that_teach_the_one_with_more_left_comes_oftener() -> None:
    """Groups of 8: 0.9424 x 0.7 + 0.02 = 0.680 at p = 0.3 and 0.9424 x 0.3 + 0.02 = 0.303 at p = 0.7.

    Of 4,000 draws 0.680 / 0.983 = 0.692, +- 0.029 with four deviations.
    """
    tasks = [task("hard", "some"), task("easy", "most")]
    rng, rates = Random(11), {"some": 0.3, "most": 0.7}
    first = Counter(Signal().select(tasks, 1, rates, rng)[0].id for _ in range(4_000))
    assert 0.663 < first["hard"] / 4_000 < 0.721


def test_an_unseen_kind_is_taken_to_teach() -> None:
    """Unseen: (1 - 2/256) 0.5 + 0.02 = 0.516; at p = 0: 0.02. Expected share 0.963, +- 0.012 (four deviations)."""
    tasks = [task("hopeless", "known"), task("new", "unseen")]
    rng = Random(3)
    first = Counter(Signal().select(tasks, 1, {"known": 0.0}, rng)[0].id for _ in range(4_000))
    assert 0.951 < first["new"] / 4_000 < 0.975


def test_what_is_chosen_is_spread_over_kinds() -> None:
    """Two draws from 90 tasks of one kind and 10 of another, all at the same p: is one of them of the rare kind?

    The first is with 0.1. After a common one 89 tasks weigh 1/4 each and 10 weigh 1: 10 / 32.25 = 0.310, together
    0.1 + 0.9 x 0.310 = 0.379. Without spread 0.1 + 0.9 x 10 / 99 = 0.191. Four deviations of 2,000 pairs: 0.043, 0.036.
    """
    tasks = [task(f"c{n}", "common") for n in range(90)] + [
        task(f"r{n}", "rare") for n in range(10)
    ]

    def share(spread: float) -> float:
        rng, curriculum = Random(5), Signal(spread=spread)
        drawn = [curriculum.select(tasks, 2, {}, rng) for _ in range(2_000)]
        return sum(any(t.required_skills == ("rare",) for t in pair) for pair in drawn) / 2_000

    assert share(2.0) == pytest.approx(0.379, abs=0.043)
    assert share(0.0) == pytest.approx(0.191, abs=0.036)


def test_select_is_seeded_distinct_and_bounded() -> None:
    tasks = [task(str(n), "s") for n in range(10)]
    first = Signal().select(tasks, 4, {}, Random(1))
    assert first == Signal().select(tasks, 4, {}, Random(1))
    assert len({t.id for t in first}) == 4
    assert {t.id for t in Signal().select(tasks, 99, {}, Random(1))} == {t.id for t in tasks}
    assert len(Signal().select([tasks[0], tasks[0]], 2, {}, Random(1))) == 1
    assert Signal().select([], 3, {}, Random(1)) == []


@pytest.mark.parametrize(
    ("rewards", "admitted"),
    [
        ((1.0, 0.0, 1.0, 0.0), True),
        ((1.0, 1.0, 1.0), False),
        ((0.0, 0.0, 0.0), False),
        ((1.0,), False),
        ((), False),
        ((1.0, None, None), False),
        ((1.0, None, 0.0), True),
        ((None, None), False),
        ((1.0, float("nan"), 1.0), False),
        ((0.5, 0.5 + 1e-9), False),
    ],
)
def test_only_groups_with_spread_are_admitted(
    rewards: tuple[float | None, ...], admitted: bool
) -> None:
    assert Signal().can_admit(group(*rewards)) is admitted


def test_spread_is_of_the_sum_of_channels() -> None:
    """Channels 1, 0 and 0, 1 sum to 1 and 1: no signal."""
    one = group(1.0, 0.0)
    both = Group(one.task, one.trajectories_G, {"a": (1.0, 0.0), "b": (0.0, 1.0)})
    assert not Signal().can_admit(both)


def test_more_scored_can_be_asked_for() -> None:
    assert not Signal(min_scored=3).can_admit(group(1.0, 0.0, None))


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="floor > 0"):
        make("curriculum", "signal", {"floor": 0.0})
    with pytest.raises(ConfigError, match="group_size >= 2"):
        make("curriculum", "signal", {"group_size": 1})
    with pytest.raises(ConfigError, match="spread >= 0"):
        make("curriculum", "signal", {"spread": -1.0})

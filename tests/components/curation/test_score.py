"""Worth and acceptance of strategies, with the published definition worked by hand."""

import math

import pytest

from components.curation.score import (
    Acceptance,
    Trial,
    accept,
    cost,
    exemplars,
    retained_turns,
    sign_test,
    worth,
)
from components.records import Bundle, Example, Message
from tests.components.curation.conversations import LINEAGE


def test_cost_is_logarithmic() -> None:
    """ln(8001)/ln(8001) = 1 and tanh(1) = 0.7616; ln(2001)/ln(8001) = 7.6014/8.9873 = 0.8458, tanh = 0.6889."""
    assert cost(8000, 8000) == pytest.approx(math.tanh(1))
    assert round(cost(2000, 8000), 4) == 0.6889
    assert cost(0, 8000) == 0


def test_worth_of_three_strategies() -> None:
    """.42 - .3(.7616) = .1915;  .41 - .3(.6889) = .2033 wins;  .38 - .3(.6889) = .1733 loses.

    A quarter of the turns is worth .3(.7616 - .6889) = .0218.
    """
    assert [round(worth(p, n, 8000), 4) for p, n in ((0.42, 8000), (0.41, 2000), (0.38, 2000))] == [
        0.1915,
        0.2033,
        0.1733,
    ]


@pytest.mark.parametrize(("turns", "reference"), [(1, 0), (-1, 8000), (1, -5)])
def test_cost_needs_a_reference(turns: int, reference: int) -> None:
    with pytest.raises(ValueError, match="reference > 0"):
        cost(turns, reference)


def test_sign_test() -> None:
    """12 of 15: (C(15,12) + C(15,13) + C(15,14) + C(15,15)) / 2^15 = (455 + 105 + 15 + 1) / 32768 = 0.017578."""
    assert sign_test(12, 3) == pytest.approx(576 / 32768)
    assert sign_test(0, 0) == 1.0
    assert sign_test(0, 4) == 1.0


def trial(scores: list[float], num_turns: int = 100, **per_mode: int) -> Trial:
    return Trial({f"t{place}": score for place, score in enumerate(scores)}, num_turns, per_mode)


def test_effectiveness_by_the_sign_test_or_by_two_tasks() -> None:
    """Three better, none worse: p = 1/8 < 0.2. One better: gain 1, p = 1/2.

    Four better, two worse: gain 2, p = 22/64.
    """
    base = trial([0.0] * 8)
    assert accept("effectiveness", base, trial([0.5, 0.5, 0.5, 0, 0, 0, 0, 0]), 100).accepted
    assert not accept("effectiveness", base, trial([1.0, 0, 0, 0, 0, 0, 0, 0]), 100).accepted
    mixed = trial([0, 0, 0, 0, 1.0, 1.0, 0, 0])
    assert accept("effectiveness", mixed, trial([1.0, 1, 1, 1, 0, 0, 0, 0]), 100).accepted
    assert not accept("effectiveness", base, base, 100).accepted


def test_effectiveness_limits_the_turns() -> None:
    base, better = trial([0.0] * 4), [1.0, 1.0, 1.0, 0.0]
    assert accept("effectiveness", base, trial(better, 150), 100).accepted
    answer = accept("effectiveness", base, trial(better, 151), 100)
    assert answer == Acceptance(
        False, "+3.00 of 4 tasks, 3 better, 0 worse, p = 0.125, but 151 turns are over 1.5 x 100"
    )
    assert accept("effectiveness", trial([0.0] * 4, 0), trial(better, 900), 100).accepted


def test_efficiency_needs_worth_success_and_exemplars() -> None:
    """Half the turns: J rises by .3(tanh(ln 101/ln 101) - tanh(ln 51/ln 101)) = .3(.7616 - .6921) = .0209."""
    base = trial([1.0] * 50 + [0.0] * 50, 100, a=9, b=2)
    same = [1.0] * 50 + [0.0] * 50
    assert accept("efficiency", base, trial(same, 50, a=3, b=2), 100).accepted
    assert "J does not rise" in accept("efficiency", base, trial(same, 100, a=9, b=2), 100).reason
    worse = [1.0] * 49 + [0.0] * 51
    assert accept("efficiency", base, trial(worse, 50, a=3, b=2), 100).accepted
    lost = [1.0] * 48 + [0.0] * 52
    refused = accept("efficiency", base, trial(lost, 20, a=3, b=2), 100)
    assert "P falls by more than 0.01" in refused.reason
    assert (
        "failure mode 'a' keeps 2"
        in accept("efficiency", base, trial(same, 50, a=2, b=2), 100).reason
    )
    assert (
        "failure mode 'b' keeps 1"
        in accept("efficiency", base, trial(same, 50, a=3, b=1), 100).reason
    )


def test_a_trial_on_other_tasks_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="same held-out tasks"):
        accept("effectiveness", trial([1.0]), trial([1.0, 1.0]), 100)
    with pytest.raises(ValueError, match="at least one"):
        accept("effectiveness", trial([]), trial([]), 100)


def test_retained_turns_are_those_with_loss() -> None:
    """Two examples with 2 and 1 targets; mode a has both, b one."""
    said = (
        Message("user", "x"),
        Message("assistant", "y"),
        Message("user", "x"),
        Message("assistant", "y"),
    )
    examples = (
        Example("1", "sft", said, (1, 3), "t", mode_ids=("a",)),
        Example("2", "sft", said, (3,), "t", mode_ids=("a", "b")),
    )
    bundle = Bundle("b", "s", examples, (), (), (), LINEAGE)
    assert retained_turns(bundle) == 3
    assert exemplars(bundle) == {"a": 2, "b": 1}

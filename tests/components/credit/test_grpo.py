"""GRPO: expected numbers follow from A = (R - mean) / (std + 1e-6) with the sample standard deviation."""

import math

import pytest

from components.credit.grpo import Grpo
from tests.components.credit.groups import MASK, advantages, group

NAN = math.nan


def test_one_success_of_four():
    """Mean 0.25, deviations 0.75 and -0.25, std = sqrt((0.75^2 + 3 * 0.25^2) / 3) = 0.5: 1.5 and -0.5."""
    found = advantages(Grpo().assign(*group([1, 0, 0, 0])))
    assert found == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)


def test_two_of_four():
    """S17: mean 0.5, std = sqrt(4 * 0.25 / 3) = 0.57735: -0.866 and 0.866."""
    found = advantages(Grpo().assign(*group([0, 1, 0, 1])))
    a = 0.5 / math.sqrt(1 / 3)
    assert found == pytest.approx([-a, a, -a, a], rel=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1 + 0.2])
def test_constant_group_is_exactly_zero(value):
    """S17: no division by the vanishing deviation, whatever the rounding of the mean."""
    assert advantages(Grpo().assign(*group([value] * 3))) == [0.0, 0.0, 0.0]


def test_group_of_one_keeps_its_return():
    assert advantages(Grpo().assign(*group([0.7]))) == [0.7]


def test_unscored_rollouts_enter_no_mean_and_no_loss():
    """S18: of [1, -, 0, NaN] two are scored: mean 0.5, std 0.7071, so 0.7071 and -0.7071."""
    found = advantages(Grpo().assign(*group([1.0, None, 0.0, NAN])))
    assert found[1] is None
    assert found[3] is None
    assert [found[0], found[2]] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-5)


def test_nothing_scored_is_not_four_zeros():
    assert advantages(Grpo().assign(*group([None] * 4))) == [None] * 4


def test_observation_between_turns_gets_nothing():
    done = Grpo().assign(*group([1, 0]))
    assert done[0].advantages_T is not None
    assert [value != 0 for value in done[0].advantages_T] == list(MASK)

"""RLOO: expected numbers follow from A_i = R_i - mean of the others."""

import pytest

from components.credit.dr_grpo import DrGrpo
from components.credit.rloo import Rloo
from tests.components.credit.groups import advantages, group


def test_one_success_of_four():
    """The success against others of mean 0: 1. A failure against others of mean 1/3: -1/3."""
    found = advantages(Rloo().assign(*group([1, 0, 0, 0])))
    assert found == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


def test_is_g_over_g_minus_one_times_the_mean_baseline():
    returns = [0.2, 0.9, 0.4, 0.0, 1.0]
    wanted = [5 / 4 * value for value in advantages(DrGrpo().assign(*group(returns)))]  # pyright: ignore
    assert advantages(Rloo().assign(*group(returns))) == pytest.approx(wanted)


def test_constant_group_and_group_of_one_are_zero():
    assert advantages(Rloo().assign(*group([1.0] * 3))) == [0.0] * 3
    assert advantages(Rloo().assign(*group([1.0]))) == [0.0]


def test_unscored_rollouts_do_not_count_as_others():
    """Of [1, -, 0] the success is compared with the one failure: 1; the failure with the success: -1."""
    assert advantages(Rloo().assign(*group([1.0, None, 0.0]))) == [1.0, None, -1.0]

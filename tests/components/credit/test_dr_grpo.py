"""Dr. GRPO: expected numbers follow from A = R - mean."""

from components.credit.dr_grpo import DrGrpo
from tests.components.credit.groups import advantages, group


def test_one_success_of_four():
    """Mean 0.25."""
    assert advantages(DrGrpo().assign(*group([1, 0, 0, 0]))) == [0.75, -0.25, -0.25, -0.25]


def test_constant_group_and_group_of_one_are_zero():
    assert advantages(DrGrpo().assign(*group([0.3] * 3))) == [0.0] * 3
    assert advantages(DrGrpo().assign(*group([1.0]))) == [0.0]


def test_unscored_rollouts_enter_no_mean():
    """S18: the mean of the two scored ones is 0.5, not 0.25."""
    assert advantages(DrGrpo().assign(*group([1.0, None, 0.0, None]))) == [0.5, None, -0.5, None]

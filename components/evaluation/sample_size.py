"""How many tasks a paired comparison needs.

    n = ( z_{1-alpha/2} sqrt(q) + z_power sqrt(q - d^2) )^2 / d^2

d is the difference in success to be found and q the share of tasks that the arms solve differently (0/1 scores, one
seed; more seeds only lower the need). Two-sided test at alpha.

Source: Connor, Biometrics 43 (1987) 207-211, sample size for McNemar's test.
"""

import math
from statistics import NormalDist


def min_tasks(
    difference: float, discordant_rate: float, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Fewest tasks that find this difference with this power.

    Raises:
        ValueError: a difference of 0, or larger than the share of tasks that differ at all; a rate outside (0, 1].
    """
    gap = abs(difference)
    if not 0 < gap <= discordant_rate <= 1:
        raise ValueError(
            f"expected 0 < |difference| <= discordant rate <= 1, got {difference!r} and {discordant_rate!r}"
        )
    if not (0 < alpha < 1 and 0 < power < 1):
        raise ValueError(f"expected alpha and power inside (0, 1), got {alpha!r} and {power!r}")
    unit = NormalDist()
    reach = unit.inv_cdf(1 - alpha / 2) * math.sqrt(discordant_rate)
    reach += unit.inv_cdf(power) * math.sqrt(discordant_rate - gap**2)
    return math.ceil(reach**2 / gap**2)


def detectable_difference(
    num_tasks: int, discordant_rate: float, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest difference, in steps of 0.001, that so many tasks find; None when not even the largest is."""
    steps = (step / 1000 for step in range(1, int(discordant_rate * 1000) + 1))
    return next(
        (gap for gap in steps if min_tasks(gap, discordant_rate, alpha, power) <= num_tasks), None
    )

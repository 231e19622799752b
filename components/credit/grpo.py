"""Group-relative policy optimisation: how many standard deviations a trajectory is better than its group.

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)          sample standard deviation over the G trajectories of one task

Every sampled token of trajectory i gets A_i.

Source: arXiv 2402.03300; constants as in the reference code (volcengine/verl).
Degenerate groups: all returns equal give A = 0. One scored trajectory keeps its return (mean 0, deviation 1), as in the
reference code. Trajectories that nobody scored enter no mean and get no stream.
Worked: R = [1, 0, 0, 0] gives [1.5, -0.5, -0.5, -0.5].
"""

from collections.abc import Sequence
from typing import Literal

from components.credit._kernels import group_baseline, spread
from components.plugins import plugin
from components.records import Group, Sample


@plugin
class Grpo:
    @property
    def stage(self) -> Literal["base"]:
        return "base"

    def assign(self, group: Group, samples: Sequence[Sample]) -> list[Sample]:
        return spread(group, samples, group_baseline(group.returns_G, "std"))

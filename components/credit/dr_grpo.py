"""GRPO done right: the return relative to the group's mean, without dividing by the deviation.

    A_i = R_i - mean(R)          over the G trajectories of one task

Every sampled token of trajectory i gets A_i. Belongs with the loss aggregation `constant`, which divides by a fixed length
instead of the trajectory's own, so long failures weigh as much as short ones.

Source: arXiv 2503.20783.
Degenerate groups: all returns equal, or one scored trajectory, give A = 0. Trajectories that nobody scored enter no mean
and get no stream.
Worked: R = [1, 0, 0, 0] gives [0.75, -0.25, -0.25, -0.25].
"""

from collections.abc import Sequence
from typing import Literal

from components.credit._kernels import group_baseline, spread
from components.plugins import plugin
from components.records import Group, Sample


@plugin
class DrGrpo:
    @property
    def stage(self) -> Literal["base"]:
        return "base"

    def assign(self, group: Group, samples: Sequence[Sample]) -> list[Sample]:
        return spread(group, samples, group_baseline(group.returns_G, "mean"))

"""REINFORCE with a leave-one-out baseline: the return relative to the mean of the other trajectories.

    A_i = R_i - mean of R_k over k != i  =  G / (G - 1) (R_i - mean(R))

Every sampled token of trajectory i gets A_i.

Source: arXiv 2402.14740.
Degenerate groups: all returns equal give A = 0. Trajectories that nobody scored enter no mean and get no stream.
Our choice: one scored trajectory has no others to compare with and gets A = 0.
Worked: R = [1, 0, 0, 0] gives [1, -1/3, -1/3, -1/3].
"""

from collections.abc import Sequence
from typing import Literal

from components.credit._kernels import group_baseline, spread
from components.plugins import plugin
from components.records import Group, Sample


@plugin
class Rloo:
    @property
    def stage(self) -> Literal["base"]:
        return "base"

    def assign(self, group: Group, samples: Sequence[Sample]) -> list[Sample]:
        return spread(group, samples, group_baseline(group.returns_G, "loo"))

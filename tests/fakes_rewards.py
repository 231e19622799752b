"""Reward plug-ins for tests: by place in the group, the same for all, not a number, one that raises.

As plug-ins they are named `tests.fakes_rewards:Uneven` and so on.
"""

from collections.abc import Sequence

from components.plugins import plugin
from components.records import Task, Trajectory


@plugin
class Uneven:
    best: float = 1.0
    """Reward of the first trajectory of a group; every other one gets 0."""

    def score(self, task: Task, trajectories_G: Sequence[Trajectory]) -> tuple[float | None, ...]:
        return tuple(self.best if place == 0 else 0.0 for place in range(len(trajectories_G)))


@plugin
class Constant:
    value: float = 1.0
    """Reward of every trajectory."""

    def score(self, task: Task, trajectories_G: Sequence[Trajectory]) -> tuple[float | None, ...]:
        return (self.value,) * len(trajectories_G)


@plugin
class NotANumber:
    num_scored: int = 0
    """Trajectories at the beginning of a group that get 1 and 0 in turn; the rest gets NaN."""

    def score(self, task: Task, trajectories_G: Sequence[Trajectory]) -> tuple[float | None, ...]:
        return tuple(
            float(place % 2 == 0) if place < self.num_scored else float("nan")
            for place in range(len(trajectories_G))
        )


@plugin
class Broken:
    def score(self, task: Task, trajectories_G: Sequence[Trajectory]) -> tuple[float | None, ...]:
        return (1.0 / len(task.id[:0]),)


@plugin
class TooFew:
    def score(self, task: Task, trajectories_G: Sequence[Trajectory]) -> tuple[float | None, ...]:
        return (1.0,)

"""The world's verdict as a reward: 1 for a solved task, 0 for one that is not.

    r_i = 1                                              the outcome is True
    r_i = sum of partial[c] over criteria c that are met     the outcome is False
    None                                                 nobody knows: the verifier abstained, or the episode failed
                                                         for a reason outside the agent (`error: ...`)

Channel: `verified`. None means "not scored": the trajectory is left out of its group's mean and out of the loss, it is
not a zero. `partial` is off by default; a criterion that an idle agent meets (`no_violation`, or the `state` of a request
that only asks) pays for idleness, so name only what must be earned.
"""

import math
from collections.abc import Sequence
from dataclasses import field

from components.plugins import plugin
from components.records import Task, Trajectory


@plugin
class Verified:
    partial: dict[str, float] = field(default_factory=dict)
    """Criterion -> what an unsolved trajectory earns for meeting it; >= 0, together below 1."""

    def __post_init__(self) -> None:
        paid = list(self.partial.values())
        if not all(math.isfinite(value) and value >= 0 for value in paid) or sum(paid) >= 1:
            raise ValueError(
                f"partial rewards must be >= 0 and together below 1, the reward of success: got {self.partial!r}"
            )

    def score(self, task: Task, trajectories_G: Sequence[Trajectory]) -> tuple[float | None, ...]:
        return tuple(self._score(trajectory) for trajectory in trajectories_G)

    def _score(self, trajectory: Trajectory) -> float | None:
        failed_outside = (trajectory.stop_reason or "").startswith("error")
        if trajectory.outcome is None or failed_outside:
            return None
        if trajectory.outcome:
            return 1.0
        met = {
            feedback.name
            for feedback in trajectory.feedback
            if feedback.source == "verifier"
            and feedback.kind == "criterion"
            and feedback.score == 1.0
        }
        return float(sum(value for name, value in self.partial.items() if name in met))

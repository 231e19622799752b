"""Practise where a group is likely to teach and much is left to learn; admit only groups that teach.

    weight(task) = ((1 - p^G - (1 - p)^G) (1 - p) + floor) / (1 + n)^spread

    p    expected success rate: the mean of the task's own and of its kind's, as far as known; else the mean over those
         of its skills that are known; else `prior`
    G    rollouts of a group; the first factor is the chance that they differ in outcome, so that the group teaches
    n    tasks of the same kind chosen already; tasks of one kind require the same set of skills

Tasks are drawn one after the other in proportion to their weight; with a floor above zero nothing is ever excluded for
good. The chance hardly depends on p between 0.2 and 0.8; the factor 1 - p prefers, of the kinds that teach, those where
most is left. A skill that most kinds share says little of any: a kind that never succeeded looked half solved by the mean
over its skills, and took places that taught nothing (docs/experiments.md). A round whose tasks are of few kinds pushes the
policy towards these kinds in every context, so what is chosen is spread over kinds.

A group is admitted when at least `min_scored` of its trajectories are scored and their returns differ: with equal returns
every group-relative advantage is zero, and the caller draws another task instead. Unscored and non-finite returns do not
count. No tasks give no tasks; asked for more than there are, all come, in the order drawn.

Source: arXiv 2503.14476 (DAPO), dynamic sampling, for the admission of groups.
Our choice: the weight, the prior one half (optimistic: an unknown task is likely to teach).
"""

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

from components.plugins import plugin
from components.records import Group, Task


@plugin
class Signal:
    prior: float = 0.5
    """Success rate assumed where nothing is known, in [0, 1]."""
    group_size: int = 8
    """Rollouts of a group, at least 2; practice gives its own."""
    floor: float = 0.02
    """Added to every signal, above 0; the largest signal of groups of 8 is 0.68, at p = 0.24."""
    spread: float = 1.0
    """How strongly tasks of the same kind as chosen ones are passed over, at least 0; 0 ignores it."""
    min_scored: int = 2
    """Scored trajectories that a group needs, at least 2."""
    min_spread: float = 1e-6
    """Difference between the best and the worst return that counts, at least 0."""

    def __post_init__(self) -> None:
        if (
            not 0 <= self.prior <= 1
            or self.group_size < 2
            or self.floor <= 0
            or self.spread < 0
            or self.min_scored < 2
            or self.min_spread < 0
        ):
            raise ValueError(
                "expected prior in [0, 1], group_size >= 2, floor > 0, spread >= 0, min_scored >= 2 and "
                f"min_spread >= 0, got {self.prior!r}, {self.group_size!r}, {self.floor!r}, {self.spread!r}, "
                f"{self.min_scored!r}, {self.min_spread!r}"
            )

    def select(
        self, tasks: Sequence[Task], num: int, success_rates: dict[str, float], rng: Random
    ) -> list[Task]:
        """At most `num` distinct tasks. `success_rates`: per task id, skill set or skill."""
        distinct = list({task.id: task for task in tasks}.values())
        signals = [self._signal(self.expected(task, success_rates)) for task in distinct]
        taken: Counter[str] = Counter()
        chosen: list[Task] = []
        left = list(range(len(distinct)))
        while left and len(chosen) < num:
            crowd = [1 + taken[distinct[i].skill_set] for i in left]
            weights = [signals[i] / n**self.spread for i, n in zip(left, crowd, strict=True)]
            (place,) = rng.choices(range(len(left)), weights)
            task = distinct[left.pop(place)]
            taken[task.skill_set] += 1
            chosen.append(task)
        return chosen

    def _signal(self, p: float) -> float:
        chance = 1.0 - p**self.group_size - (1.0 - p) ** self.group_size
        return chance * (1.0 - p) + self.floor

    def expected(self, task: Task, success_rates: dict[str, float]) -> float:
        """The success rate to expect of a task."""
        near = [success_rates[key] for key in (task.id, task.skill_set) if key in success_rates]
        far = [success_rates[skill] for skill in task.required_skills if skill in success_rates]
        known = near or far
        return sum(known) / len(known) if known else self.prior

    def can_admit(self, group: Group) -> bool:
        scored = [value for value in group.returns_G if value is not None and math.isfinite(value)]
        return len(scored) >= self.min_scored and max(scored) - min(scored) > self.min_spread

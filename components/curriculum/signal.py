"""Practise where the outcome is most uncertain; admit only groups that teach.

    weight(task) = (p (1 - p) + floor) / (1 + n)^spread      p: expected success rate
                                                              n: tasks chosen already that require the same skills

p is what is known of the task itself, else the mean over those of its skills that are known, else `prior`. Tasks are drawn
one after the other in proportion to their weight; with a floor above zero nothing is ever excluded for good. A round whose
tasks are of few kinds pushes the policy towards these kinds in every context, so what is chosen is spread over kinds.

A group is admitted when at least `min_scored` of its trajectories are scored and their returns differ: with equal returns
every group-relative advantage is zero, and the caller draws another task instead. Unscored and non-finite returns do not
count. No tasks give no tasks; asked for more than there are, all come, in the order drawn.

Source: arXiv 2503.14476 (DAPO), dynamic sampling, for the admission of groups.
Our choice: the weight, the prior one half (optimistic: an unknown skill has the largest signal).
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
    floor: float = 0.02
    """Added to every signal, above 0; the largest signal is 0.25."""
    spread: float = 2.0
    """How strongly tasks that require the same skills as chosen ones are passed over, at least 0; 0 ignores it."""
    min_scored: int = 2
    """Scored trajectories that a group needs, at least 2."""
    min_spread: float = 1e-6
    """Difference between the best and the worst return that counts, at least 0."""

    def __post_init__(self) -> None:
        if (
            not 0 <= self.prior <= 1
            or self.floor <= 0
            or self.spread < 0
            or self.min_scored < 2
            or self.min_spread < 0
        ):
            raise ValueError(
                "expected prior in [0, 1], floor > 0, spread >= 0, min_scored >= 2 and min_spread >= 0, got "
                f"{self.prior!r}, {self.floor!r}, {self.spread!r}, {self.min_scored!r}, {self.min_spread!r}"
            )

    def select(
        self, tasks: Sequence[Task], num: int, success_rates: dict[str, float], rng: Random
    ) -> list[Task]:
        """At most `num` distinct tasks. `success_rates`: per task id or per skill."""
        distinct = list({task.id: task for task in tasks}.values())
        signals = [self._signal(self.expected(task, success_rates)) for task in distinct]
        taken: Counter[tuple[str, ...]] = Counter()
        chosen: list[Task] = []
        left = list(range(len(distinct)))
        while left and len(chosen) < num:
            crowd = [1 + taken[distinct[i].required_skills] for i in left]
            weights = [signals[i] / n**self.spread for i, n in zip(left, crowd, strict=True)]
            (place,) = rng.choices(range(len(left)), weights)
            task = distinct[left.pop(place)]
            taken[task.required_skills] += 1
            chosen.append(task)
        return chosen

    def _signal(self, p: float) -> float:
        return p * (1.0 - p) + self.floor

    def expected(self, task: Task, success_rates: dict[str, float]) -> float:
        """The success rate to expect of a task."""
        if task.id in success_rates:
            return success_rates[task.id]
        known = [success_rates[skill] for skill in task.required_skills if skill in success_rates]
        return sum(known) / len(known) if known else self.prior

    def can_admit(self, group: Group) -> bool:
        scored = [value for value in group.returns_G if value is not None and math.isfinite(value)]
        return len(scored) >= self.min_scored and max(scored) - min(scored) > self.min_spread

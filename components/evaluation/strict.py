"""The gate: a challenger is offered only when every criterion is met; what could not be judged is not met.

    sample         enough tasks scored in both arms
    improvement    difference > 0, exact two-sided paired p <= alpha, and the 95% interval above 0
    no harm        no slice worse (Holm over slices, one-sided, `slices.py`)
    not forgotten  no older suite (slices named `suite:<name>`) worse by more than the tolerance, judged likewise
    delivery       fact `delivery`: the served adapter is the trained one
    disjoint       fact `disjoint`: nothing that was trained on is in the evaluation

Without `suite:` slices, the fact `no_older_suites` must be True. A fact that is missing or None leaves its criterion at
None. No slice at all passes `no harm`, and its reason says that nothing was protected; slices of which none has enough
tasks leave it at None.

A challenger that is no better passes `improvement` with a chance of at most alpha / 2, since the test is two-sided and
the sign must be right: 2.5% at the default, half of the 5% that is promised.
"""

from collections.abc import Sequence
from fractions import Fraction

from components.evaluation.paired import Differences, differences
from components.evaluation.report import SUITE
from components.evaluation.sample_size import detectable_difference
from components.evaluation.slices import Harm, judge_slices
from components.plugins import plugin
from components.records import Criterion, Decision, Report

FACTS = {
    "delivery": (
        "the served adapter is the trained one",
        "the served adapter is not the trained one",
    ),
    "disjoint": ("training and evaluation share nothing", "training and evaluation share data"),
}
"""Fact -> what True and False mean."""


@plugin
class Strict:
    alpha: float = 0.05
    """Level of every test, in (0, 1)."""
    min_tasks: int = 100
    """Tasks scored in both arms that a decision needs; 77 find 20 points at power 0.8 when 40% of the tasks differ."""
    min_slice_tasks: int = 10
    """Tasks that a slice needs to be judged."""
    suite_tolerance: float = 0.01
    """Fall of an older suite that is never called forgetting, in [0, 1]."""

    def __post_init__(self) -> None:
        if not (0 < self.alpha < 1 and 0 <= self.suite_tolerance <= 1):
            raise ValueError(
                f"expected alpha in (0, 1) and suite_tolerance in [0, 1], "
                f"got {self.alpha!r} and {self.suite_tolerance!r}"
            )

    def decide(self, report: Report, facts: dict[str, bool | None]) -> Decision:
        found = differences(report.scores["champion"], report.scores["challenger"])
        suites = {name: ids for name, ids in report.slices.items() if name.startswith(SUITE)}
        protected = {name: ids for name, ids in report.slices.items() if name not in suites}
        criteria = (
            self._sample(report, _unscored(found, suites)),
            self._improvement(report),
            self._no_harm(found.by_task, protected),
            self._not_forgotten(found.by_task, suites, facts.get("no_older_suites")),
            *(_proof(name, facts.get(name)) for name in FACTS),
        )
        accepted = all(criterion.passed is True for criterion in criteria)
        return Decision(report.id, accepted, criteria)

    def _sample(self, report: Report, num_unscored: int) -> Criterion:
        stats = report.paired
        text = f"{stats.num_tasks} tasks with up to {stats.num_seeds} seeds scored in both arms"
        if num_unscored:
            text += f", {num_unscored} excluded as unscored"
        differing = (stats.wins + stats.losses) / stats.num_tasks if stats.num_tasks else 0.0
        gap = detectable_difference(stats.num_tasks, differing, self.alpha) if differing else None
        if gap is not None:
            text += f"; a difference of {gap:.3f} is found 4 times in 5"
        return Criterion(
            "sample", stats.num_tasks >= self.min_tasks, f"{text}; at least {self.min_tasks} needed"
        )

    def _improvement(self, report: Report) -> Criterion:
        stats = report.paired
        reason = (
            f"difference {stats.difference:+.3f} [{stats.low:+.3f}, {stats.high:+.3f}], "
            f"{stats.wins} tasks better, {stats.losses} worse, p = {stats.p_value:.4f} "
            f"(needed: above 0, p <= {self.alpha:g}, interval above 0)"
        )
        if stats.num_tasks == 0:
            return Criterion(
                "improvement", None, "could not be judged: no task is scored in both arms"
            )
        better = stats.difference > 0 and stats.low > 0 and stats.p_value <= self.alpha
        return Criterion("improvement", better, reason)

    def _no_harm(
        self, gains: dict[str, Fraction], protected: dict[str, tuple[str, ...]]
    ) -> Criterion:
        if not protected:
            return Criterion("no harm", True, "the report names no slice, so none was protected")
        harm = judge_slices(gains, protected, self.min_slice_tasks, self.alpha)
        return self._judged("no harm", harm)

    def _not_forgotten(
        self,
        gains: dict[str, Fraction],
        suites: dict[str, tuple[str, ...]],
        no_older: bool | None,
    ) -> Criterion:
        if not suites:
            if no_older is True:
                return Criterion("not forgotten", True, "there is no older suite yet")
            return Criterion(
                "not forgotten",
                None,
                "could not be judged: the report has no older suite, and none is known to be absent",
            )
        harm = judge_slices(gains, suites, self.min_slice_tasks, self.alpha, self.suite_tolerance)
        return self._judged("not forgotten", harm)

    def _judged(self, name: str, harm: Harm) -> Criterion:
        small = ""
        if harm.too_small:
            small = f"; not judged, under {self.min_slice_tasks} tasks: {_listed(harm.too_small)}"
        if not harm.judged:
            return Criterion(name, None, f"could not be judged{small}")
        if harm.harmed:
            shown = [
                f"{item.name} {item.difference:+.3f} on {item.num_tasks} tasks (p = {item.p_worse:.4f})"
                for item in harm.harmed
            ]
            return Criterion(name, False, f"worse: {_listed(shown)}{small}")
        lowest = min(harm.judged, key=lambda item: item.difference)
        reason = (
            f"none of {len(harm.judged)} is worse; lowest {lowest.name} {lowest.difference:+.3f}"
        )
        return Criterion(name, True, f"{reason} (p = {lowest.p_worse:.4f}){small}")


def _unscored(found: Differences, suites: dict[str, tuple[str, ...]]) -> int:
    """Tasks of the main suite that were excluded."""
    older = {task for tasks in suites.values() for task in tasks}
    return sum(task not in older for task in found.unscored)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _proof(name: str, fact: bool | None) -> Criterion:
    if fact is None:
        return Criterion(name, None, f"could not be judged: nobody proved {name!r}")
    return Criterion(name, fact, FACTS[name][0 if fact else 1])

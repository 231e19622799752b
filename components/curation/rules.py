"""Rewrites a strategy by rules: what fails decides which operators are added to its code.

Two stages take turns. *Effectiveness* (after `initial` and after `efficiency`): the most frequent kinds of model
failures, by (kind, tool), each add the operators of their row in `EDITS`, with a test written for just that failure.
*Efficiency* (after `effectiveness`): near-doubles go, long tool results are cut, long successes that no failure points
to go while every failure mode keeps three examples; pruning comes last in the code.

The answer is None when nothing applies: no failure is known to the table, all operators are already there, or the
source is not in pipeline form (`_editor.py`). Only faults of the model and unclear ones count, and no case that a
reviewer dismissed.

Source: arXiv 2607.06140 (two stages, evidence-driven rewriting of code, prune last).
Our choice: a program editor with a table in place of a code-writing model; the table and its numbers are ours.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from components.curation._editor import Function, Step, concerns, insert
from components.plugins import plugin, version_of
from components.records import CurationStrategy, FailureCase, Lineage
from components.serial import digest

Edit = Callable[[Function, float], Step]


def _emphasise(test: Function, factor: float) -> Step:
    return Step("reweight", (test, factor))


def _segment(test: Function, factor: float) -> Step:
    return Step("segment_around", (test, 0))


def _segment_and_next(test: Function, factor: float) -> Step:
    return Step("segment_around", (test, 1))


def _contrast(test: Function, factor: float) -> Step:
    return Step("contrast_pair", (test,))


def _shorten(test: Function, factor: float) -> Step:
    return Step("truncate_observation", (test, 400))


def _remember(test: Function, factor: float) -> Step:
    return Step("to_memory", (test,))


EDITS: dict[str, tuple[Edit, ...]] = {
    "wrong_tool": (_segment_and_next, _emphasise),
    "wrong_argument": (_segment, _emphasise),
    "unparsable_action": (_segment, _emphasise),
    "malformed_call": (_segment, _emphasise),
    "missing_step": (_segment_and_next, _emphasise),
    "extra_step": (_segment, _emphasise),
    "repeated_call": (_segment, _emphasise),
    "policy_violation": (_segment_and_next, _emphasise, _remember),
    "tool_error": (_segment_and_next, _emphasise),
    "wrong_reply": (_emphasise, _remember),
    "cut_off": (_shorten, _emphasise),
    "wrong_outcome": (_emphasise, _remember),
}
"""Kind of failure -> edits of the effectiveness stage."""

PRUNING = (
    Step("dedupe", (Function("same_actions"),)),
    Step("truncate_observation", (Function("has_long_observation"), 400)),
    Step("drop_if", (Function("is_long_and_routine"), "long and routine", 3)),
)
"""Edits of the efficiency stage."""


@plugin
class Rules:
    num_failures: int = 3
    """Kinds of failure, by (kind, tool), that one rewrite aims at."""
    min_cases: int = 2
    """Cases that a kind of failure needs to be worth an edit."""
    emphasis: float = 2.0
    """Factor on the weight of the examples that a rewrite aims at, in [0.125, 8]."""

    def __post_init__(self) -> None:
        if self.num_failures < 1 or self.min_cases < 1 or not 0.125 <= self.emphasis <= 8:
            raise ValueError(
                f"expected num_failures >= 1, min_cases >= 1 and emphasis in [0.125, 8], "
                f"got {self.num_failures!r}, {self.min_cases!r} and {self.emphasis!r}"
            )

    def rewrite(
        self, strategy: CurationStrategy, cases: Sequence[FailureCase]
    ) -> CurationStrategy | None:
        if strategy.stage == "effectiveness":
            pruned = insert(strategy.source, PRUNING)
            return None if pruned is None else self._child(strategy, pruned, "efficiency", ())
        counted = [case for case in cases if _counts(case)]
        common = Counter((case.kind, case.tool) for case in counted if case.kind in EDITS)
        ranked = sorted(
            common.items(), key=lambda entry: (-entry[1], entry[0][0], entry[0][1] or "")
        )
        aims = [aim for aim, count in ranked if count >= self.min_cases][: self.num_failures]
        steps = [
            edit(concerns(kind, tool), self.emphasis) for kind, tool in aims for edit in EDITS[kind]
        ]
        edited = insert(strategy.source, steps, before="practise") if steps else None
        if edited is None:
            return None
        motives = tuple(case.id for case in counted if (case.kind, case.tool) in aims)
        return self._child(strategy, edited, "effectiveness", motives)

    def _child(
        self,
        parent: CurationStrategy,
        source: str,
        stage: Literal["effectiveness", "efficiency"],
        motives: tuple[str, ...],
    ) -> CurationStrategy:
        config = digest([self.num_failures, self.min_cases, self.emphasis])
        lineage = Lineage((parent.id,), "curation/rules", version_of(self), "rule", config)
        return CurationStrategy(
            digest(source), source, stage, lineage, parent_id=parent.id, motivating_cases=motives
        )


def _counts(case: FailureCase) -> bool:
    dismissed = case.review is not None and case.review.verdict == "dismissed"
    return case.fault in ("model", "unclear") and not dismissed

"""Builds the report of a comparison: scores, slices, and the paired statistics of the main suite.

Older suites ride in the same report as slices named `suite:<name>`; their tasks are judged for forgetting and stay out
of the main statistics. The report's id is the digest of its content.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from components.evaluation.paired import Comparison, Scores, compare
from components.records import Lineage, Report, Task
from components.serial import digest

SUITE = "suite:"


class Arm(NamedTuple):
    """One policy's scores."""

    policy: str
    """Model id and version."""
    scores: Scores


class Built(NamedTuple):
    report: Report
    unscored: tuple[str, ...]
    """Tasks of the main suite left out of both arms."""


def build_report(
    champion: Arm,
    challenger: Arm,
    slices: Mapping[str, Sequence[str]],
    lineage: Lineage,
    num_resamples: int = 10_000,
) -> Built:
    """The report of two arms on the same tasks and seeds.

    Raises:
        ValueError: the arms hold other tasks or seeds, or a slice names a task that was not run.
    """
    unknown = {task for tasks in slices.values() for task in tasks} - champion.scores.keys()
    if unknown:
        raise ValueError(f"slices name task {min(unknown)!r}, which was not evaluated")
    rng = Random(lineage.seed)
    paired = _main_comparison(champion.scores, challenger.scores, slices, rng, num_resamples)
    report = Report(
        id="",
        champion=champion.policy,
        challenger=challenger.policy,
        scores={
            "champion": {task: tuple(row) for task, row in sorted(champion.scores.items())},
            "challenger": {task: tuple(row) for task, row in sorted(challenger.scores.items())},
        },
        slices={name: tuple(tasks) for name, tasks in sorted(slices.items())},
        paired=paired.stats,
        lineage=lineage,
    )
    return Built(replace(report, id=digest(report)), paired.unscored)


def _main_comparison(
    champion: Scores,
    challenger: Scores,
    slices: Mapping[str, Sequence[str]],
    rng: Random,
    num_resamples: int,
) -> Comparison:
    older = {task for name in slices if name.startswith(SUITE) for task in slices[name]}
    return compare(
        {task: row for task, row in champion.items() if task not in older},
        {task: row for task, row in challenger.items() if task not in older},
        rng,
        num_resamples,
    )


def skill_slices(tasks: Sequence[Task]) -> dict[str, tuple[str, ...]]:
    """One slice per required skill."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        for skill in dict.fromkeys(task.required_skills):
            found.setdefault(f"skill:{skill}", []).append(task.id)
    return {name: tuple(ids) for name, ids in sorted(found.items())}

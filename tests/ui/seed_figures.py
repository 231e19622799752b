"""The figures of a seeded night: scores of three arms, the gate's answer, the summary as a night writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from components.evaluation.intervals import rate_of
from components.evaluation.paired import Scores, compare
from components.evaluation.report import Arm, build_report
from components.evaluation.strict import Strict
from components.records import (
    ArmScore,
    Bundle,
    Decision,
    FailureMode,
    ModeLine,
    NightSummary,
    PairedStats,
    Report,
    StageLine,
)
from components.serial import digest, dump
from store import reports
from store.db import Conn
from tests.ui.desk_logs import AGENT, KINDS, lineage

NUM_TASKS = 60
SECONDS = {
    "ingest": 1.9,
    "mine": 3.4,
    "curate": 42.0,
    "remember": 2.2,
    "train": 691.0,
    "evaluate": 318.0,
    "offer": 1.1,
}
FACTS: dict[str, bool | None] = {"delivery": True, "disjoint": True, "no_older_suites": True}


class Decided(NamedTuple):
    report: Report
    decision: Decision
    scores: dict[str, Scores]


@dataclass(frozen=True)
class Outcome:
    """What one seeded night came to."""

    night: str
    num_cases: int
    bundle: Bundle | None = None
    revision: int = 0
    lessons: tuple[str, ...] = ()
    number: int = 0
    failed: str = ""
    decided: Decided | None = None


def evaluate(conn: Conn, outcome: Outcome) -> Decided:
    """A report whose challengers grow better; every fifth one is no better than the champion."""
    rng = Random(100 + outcome.number)
    level = 0.33 + 0.022 * outcome.number
    gain = 0.01 if outcome.number % 5 == 2 else 0.17
    rates = {"champion": level, "sft_only": level + 0.5 * gain, "challenger": level + gain}
    names = [f"task-eval-{KINDS[at % 6].name}-{at:03d}" for at in range(NUM_TASKS)]
    ease = {name: rng.uniform(-0.2, 0.2) for name in names}
    scores: dict[str, Scores] = {
        arm: {name: tuple(float(rng.random() < rate + ease[name]) for _ in range(3)) for name in names}
        for arm, rate in rates.items()
    }  # fmt: skip
    slices = {
        f"skill:{kind.tool}": tuple(name for name in names if kind.name in name) for kind in KINDS
    }
    report = build_report(
        Arm(digest(f"champion {outcome.night}"), scores["champion"]),
        Arm(digest(outcome.night), scores["challenger"]),
        slices,
        lineage("evaluation/paired"),
        num_resamples=400,
    ).report
    decision = Strict(min_tasks=40).decide(report, FACTS)
    reports.put(conn, report, AGENT, outcome.night)
    reports.decide(conn, decision)
    return Decided(report, decision, scores)


CONFUSION = {
    "wrong_tool": {"solved": 31, "wrong_tool": 12, "cut_off": 2},
    "solved": {"solved": 58, "wrong_tool": 3},
    "unparsable_action": {"solved": 14},
}
"""Endings of the champion's rollouts, by endings of the challenger's."""


def summary_of(outcome: Outcome, modes: Sequence[FailureMode]) -> dict[str, Any]:
    decided = outcome.decided
    arms: dict[str, ArmScore] = {}
    paired: dict[str, PairedStats] = {}
    if decided is not None:
        for name, scores in decided.scores.items():
            rate = rate_of(scores, Random(3), 400)
            arms[name] = ArmScore(rate.rate or 0.0, rate.low, rate.high, rate.num_tasks, 3)
        alone = compare(decided.scores["sft_only"], decided.scores["challenger"], Random(3), 400)
        paired = {
            "challenger-champion": decided.report.paired,
            "challenger-sft_only": alone.stats,
        }
    bundle = outcome.bundle
    counts = {"trajectories": 32, "quarantined": outcome.number % 3, "cases": outcome.num_cases}
    if bundle is not None:
        counts |= {"examples": len(bundle.examples), "dropped": len(bundle.dropped)}
    if decided is not None:
        counts |= {"sft_steps": 48, "rl_steps": 12}
    made = NightSummary(
        stages=_stages(outcome),
        arms=arms,
        paired=paired,
        modes=tuple(ModeLine(m.id, m.name, m.status, m.counts[outcome.night]) for m in modes),
        lessons=outcome.lessons,
        rates={"sampled_tokens_per_s": 212.4, "trained_tokens_per_s": 388.0, "orchestration_share": 0.012},
        counts=counts,
        accepted=decided.decision.accepted if decided else None,
        criteria=decided.decision.criteria if decided else (),
        strategy_id=bundle.strategy_id if bundle else None,
        bundle_id=bundle.id if bundle else None,
        report_id=decided.report.id if decided else None,
        memory_revision=str(outcome.revision) if bundle else None,
        challenger_digest=digest(outcome.night) if decided else None,
        confusion=CONFUSION if decided else {},
        note=_note(outcome),
    )  # fmt: skip
    return dump(made)


def _note(outcome: Outcome) -> str:
    if outcome.failed:
        return "Some stages failed; running the same night again tries only them."
    return "" if outcome.decided else "Trained nothing: too few new examples."


def _stages(outcome: Outcome) -> tuple[StageLine, ...]:
    lines = {
        "ingest": "32 trajectories from 1 file",
        "mine": f"{outcome.num_cases} failures in 5 modes, of 32 trajectories",
        "curate": "examples kept, conversations dropped; strategy in force",
        "remember": f"{len(outcome.lessons)} lessons written, revision {outcome.revision}",
        "train": "48 steps of imitation, 12 of practice",
        "evaluate": "champion, SFT alone and challenger on 60 tasks",
        "offer": "registered",
    }
    rng = Random(outcome.number)
    stages: list[StageLine] = []
    for name, seconds in SECONDS.items():
        if outcome.failed == name:
            stages.append(StageLine(name, "failed", 61.0, "the database went away 4 times"))
            return tuple(stages)
        if outcome.decided is None and not outcome.failed and name == "train":
            stages.append(StageLine(name, "done", 0.4, "trained nothing: too few new examples"))
            return (
                *stages,
                *(StageLine(each, "skipped", 0.0, "nothing was trained") for each in ("evaluate", "offer")),
            )  # fmt: skip
        spread = seconds * rng.uniform(0.9, 1.15)
        stages.append(StageLine(name, "done", round(spread, 1), lines[name]))
    return tuple(stages)

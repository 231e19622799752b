"""Evaluate: every arm on the same held-out tasks and seeds, paired.

Arms: the champion that served the day, the branch trained by SFT alone, the challenger; the challenger once more
without memory on part of the tasks. The tasks are drawn once per project from the world's test split, so nights can be
compared, and everything trained on is checked against them.
Without an environment the same arms are compared on held-out decision points of the logs (`flows/replay.py`).
"""

from collections.abc import Mapping
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from components import plugins
from components.evaluation.confusion import Confusion, confuse, endings
from components.evaluation.intervals import rate_of
from components.evaluation.paired import Scores, compare
from components.evaluation.report import Arm, build_report, skill_slices
from components.protocols import World
from components.records import ArmScore, Lineage, NightSummary, PairedStats, Report, Task
from components.serial import digest, dump
from flows import policies, replay
from flows.proofs import gather_facts
from flows.remember import recall_blocks
from flows.resources import Resources
from flows.rollouts import Episodes, Practice, roll_out
from flows.stage import Deadline, Stage, StageResult, Write, run_stage
from store import reports, tasks, trajectories
from store.db import Conn

BASE = "base"
"""What the untrained model is called in a report; everything else is called by the digest of its adapter."""
SEED_OF_TASKS = 20_000
"""Test tasks depend on this and the project's seed alone."""


class Arms(NamedTuple):
    """Scores of every arm, and what the champion and the challenger are called."""

    scores: dict[str, Scores]
    champion: str
    challenger: str
    slices: dict[str, tuple[str, ...]]
    rates: dict[str, float]
    confusion: Confusion
    """Endings of the champion's rollouts against the challenger's; empty without an environment."""


class Memories(NamedTuple):
    """Revisions of the memory bank; None is an empty bank."""

    before: int | None
    """What served the day, and goes with the champion."""
    after: int | None
    """What this night made of it, and goes with everything trained tonight."""


def evaluate(r: Resources, night: str, trained: dict[str, Any], memories: Memories) -> StageResult:
    """The stage."""
    settings = r.settings
    gate = plugins.make("evaluation", settings.gate.name, settings.gate.options)
    miner = plugins.make("mining", settings.mining.miner.name, settings.mining.miner.options)
    stage = Stage(
        agent=r.settings.agent,
        night=night,
        name="evaluate",
        versions={
            "gate": plugins.version_of(gate),
            "miner": plugins.version_of(miner),
            **policies.versions(settings),
        },
        config={
            "evaluation": settings.evaluation.model_dump(mode="json"),
            "gate": settings.gate.model_dump(mode="json"),
            "miner": settings.mining.miner.model_dump(mode="json"),
            "seed": settings.seed,
        },
        inputs=(
            str(trained["champion"]),
            str(trained["challenger"]),
            str(trained.get("sft_only")),
            str(memories.before),
            str(memories.after),
        ),
    )

    def work(deadline: Deadline) -> Write:
        measure = _in_world if settings.environment else replay.measure
        arms = measure(r, night, trained, memories, deadline)
        report = _report(r, arms, trained)
        decision = gate.decide(
            report, gather_facts(r, night, trained, list(arms.scores["champion"]))
        )
        figures = summarise(arms, r.settings.seed)

        def write(conn: Conn) -> dict[str, Any]:
            reports.put(conn, report, settings.agent, night)
            reports.decide(conn, decision)
            return {
                "line": _line(figures, decision.accepted),
                "report_id": report.id,
                "accepted": decision.accepted,
                "summary": dump(figures),
            }

        return write

    return run_stage(r, stage, work)


def test_tasks(world: World, num: int, seed: int) -> list[Task]:
    """The held-out tasks, the same every night."""
    return [task for task, _ in world.tasks(num, "test", Random(SEED_OF_TASKS + seed))]


def _in_world(
    r: Resources, night: str, trained: dict[str, Any], memories: Memories, deadline: Deadline
) -> Arms:
    settings = r.settings.evaluation
    world = policies.world_of(r.settings)
    chosen = test_tasks(world, settings.tasks, r.settings.seed)
    said = [task.instruction for task in chosen]
    blocks = recall_blocks(r, memories.after, said)
    before = recall_blocks(r, memories.before, said)
    with r.db.connect() as conn:
        tasks.put(conn, chosen, night)
    plans: dict[str, tuple[str | None, list[Task], list[str]]] = {
        "champion": (trained["champion"], chosen, before),
        "challenger": (trained["challenger"], chosen, blocks),
    }
    if trained.get("sft_only"):
        plans["sft_only"] = (trained["sft_only"], chosen, blocks)
    if any(blocks) and settings.memory_tasks:
        part = chosen[: settings.memory_tasks]
        plans["challenger_without_memory"] = (trained["challenger"], part, [""] * len(part))
    played: dict[str, ArmRun] = {}
    actor = None
    for name, (adapter, some, memory) in plans.items():
        deadline.check(f"evaluating {name}")
        version = policies.version_name(adapter)
        actor = policies.actor_of(r, policies.load(r, adapter), version, actor)
        played[name] = _run_arm(r, night, name, actor, Episodes(world, some, memory))
    return Arms(
        {name: arm.scores for name, arm in played.items()},
        trained["champion"] or BASE,
        trained["challenger"],
        skill_slices(chosen),
        {"sampled_tokens_per_s": fmean(arm.tokens_per_s for arm in played.values())},
        confuse(played["champion"].endings, played["challenger"].endings),
    )


class ArmRun(NamedTuple):
    scores: Scores
    endings: list[str]
    """By task and seed."""
    tokens_per_s: float


def _run_arm(
    r: Resources, night: str, name: str, actor: policies.Actor, episodes: Episodes
) -> ArmRun:
    settings = r.settings.evaluation
    groups = roll_out(
        r,
        actor,
        episodes,
        Practice(
            group_size=settings.seeds,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=r.settings.seed,
            what=f"evaluating {name.replace('_', ' ')}",
        ),
    )
    flat = [trajectory for group in groups for trajectory in group]
    with r.db.connect() as conn:
        trajectories.put(conn, r.files, flat, night, "evaluation")
    scores = {
        task.id: tuple(None if t.outcome is None else float(t.outcome) for t in group)
        for task, group in zip(episodes.tasks, groups, strict=True)
    }
    part = r.settings.mining.miner
    cases = plugins.make("mining", part.name, part.options).mine(flat)
    return ArmRun(scores, endings(flat, cases), policies.tokens_per_s(actor.engine))


def _report(r: Resources, arms: Arms, trained: dict[str, Any]) -> Report:
    lineage = Lineage(
        (trained["champion"] or BASE, trained["challenger"]),
        "evaluation/paired",
        digest(sorted(arms.scores["champion"]))[:12],
        "rule",
        digest([r.settings.agent, r.settings.evaluation.model_dump(mode="json")]),
        r.settings.seed,
    )
    champion = Arm(arms.champion, arms.scores["champion"])
    challenger = Arm(arms.challenger, arms.scores["challenger"])
    return build_report(champion, challenger, arms.slices, lineage).report


def summarise(arms: Arms, seed: int) -> NightSummary:
    """Scores with intervals and the paired differences."""
    named = {
        name: score for name, scores in arms.scores.items() if (score := arm_score(scores, seed))
    }
    pairs: dict[str, PairedStats] = {}
    for other in ("champion", "sft_only", "challenger_without_memory"):
        if other in arms.scores:
            pairs[f"challenger-{other}"] = _paired(arms.scores, other, seed)
    return NightSummary((), named, pairs, (), (), arms.rates, {}, confusion=arms.confusion)


def arm_score(scores: Scores, seed: int) -> ArmScore | None:
    """Mean success with its 95% interval; None when nothing was scored."""
    rate = rate_of(scores, Random(seed))
    if rate.rate is None:
        return None
    seeds = max(len(row) for row in scores.values())
    return ArmScore(rate.rate, rate.low, rate.high, rate.num_tasks, seeds)


def _paired(scores: Mapping[str, Scores], other: str, seed: int) -> PairedStats:
    """The challenger against another arm on the tasks that both ran."""
    theirs = scores[other]
    ours = {task: row for task, row in scores["challenger"].items() if task in theirs}
    return compare(theirs, ours, Random(seed)).stats


def _line(figures: NightSummary, accepted: bool) -> str:
    parts = [f"{name.replace('_', ' ')} {arm.mean:.1%}" for name, arm in figures.arms.items()]
    return f"{', '.join(parts)}; {'offered' if accepted else 'refused'} by the gate"

"""Curate: the strategy in force and a rewrite of it are tried on held-out failures; the better one makes tonight's bundle.

Failures are split by conversation: strategies see the larger part while they are compared, and are scored on the rest.
The one that wins is then applied to everything, since the test tasks are elsewhere. Reviews count as they stood when the
night began; later ones belong to the next night.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from components import plugins
from components.curation.apply import apply_strategy
from components.curation.score import Trial, accept, exemplars, retained_turns, worth
from components.curation.strategy_zero import strategy_zero
from components.records import Bundle, CurationStrategy, FailureCase, Trajectory
from components.serial import digest
from flows.resources import Resources
from flows.splits import without_duplicates
from flows.stage import Deadline, Stage, StageResult, Write, run_stage
from flows.trial import try_bundle
from store import bundles, cases, nights, strategies, trajectories
from store.db import Conn

MIN_HELDOUT = 4
"""With fewer held-out failures a comparison says nothing, and the strategy in force stays."""


class Corpus(NamedTuple):
    trajectories: list[Trajectory]
    cases: list[FailureCase]


def curate(r: Resources, night: str, mined: str) -> StageResult:
    """The stage. `mined`: digest of what mining found."""
    settings = r.settings.curation
    rewriter = plugins.make("curation", settings.rewriter.name, settings.rewriter.options)
    corpus = load_corpus(r, night)
    stage = Stage(
        agent=r.settings.agent,
        night=night,
        name="curate",
        versions={"rewriter": plugins.version_of(rewriter)},
        config={**settings.model_dump(mode="json"), "seed": r.settings.seed},
        inputs=(mined, digest(corpus.cases)),
    )

    def work(deadline: Deadline) -> Write:
        parent = _in_force(r)
        child = rewriter.rewrite(parent, corpus.cases)
        tried = _compare(r, corpus, [parent, *([child] if child else [])], deadline)
        chosen = tried[-1] if tried[-1].status == "accepted" else tried[0]
        curated = apply_strategy(chosen, corpus.trajectories, corpus.cases, r.settings.seed)
        # Two agents without data have the same bundle otherwise.
        bundle = replace(curated.bundle, id=digest([r.settings.agent, curated.bundle.id]))

        def write(conn: Conn) -> dict[str, Any]:
            for strategy in tried:
                strategies.put(conn, strategy, r.settings.agent, night)
            bundles.put(conn, bundle, r.settings.agent, night)
            return {
                "line": _line(bundle, tried, chosen),
                "strategy_id": chosen.id,
                "bundle_id": bundle.id,
                "examples": len(bundle.examples),
                "dropped": len(bundle.dropped),
                "rejected": list(curated.rejected),
                "scores": {strategy.id: strategy.scores or {} for strategy in tried},
            }

        return write

    return run_stage(r, stage, work)


def load_corpus(r: Resources, night: str) -> Corpus:
    """Production of the last nights with its failure cases, reviews as they stood when the night began."""
    with r.db.connect() as conn:
        begun = nights.get(conn, r.settings.agent, night)
        cutoff = begun.started_at if begun else datetime.now(UTC)
        recent = nights.recent(conn, r.settings.agent, r.settings.curation.window_nights)
        window = sorted({night, *(row.night for row in recent if row.night <= night)})
        ids = [
            id_
            for name in window
            for id_ in trajectories.ids_of_night(conn, r.settings.agent, name, "production")
        ]
        found = trajectories.get(conn, r.files, sorted(set(ids)))
        known = {item.id for item in found}
        judged = [
            case for name in window for case in cases.as_of(conn, r.settings.agent, cutoff, name)
        ]
    training = without_duplicates(
        [item for item in found if item.split == "train"],
        [item for item in found if item.split == "test"],
    )
    return Corpus(training, [case for case in judged if case.trajectory_id in known])


def _in_force(r: Resources) -> CurationStrategy:
    with r.db.connect() as conn:
        return strategies.accepted(conn, r.settings.agent) or replace(
            strategy_zero(), status="accepted"
        )


def is_heldout(item: Trajectory, share: float) -> bool:
    """Whether a conversation belongs to the part on which strategies are scored."""
    return int(digest(item.conversation_id or item.id)[:8], 16) / 16**8 < share


def _compare(
    r: Resources, corpus: Corpus, tried: Sequence[CurationStrategy], deadline: Deadline
) -> list[CurationStrategy]:
    """The strategies with their scores, the last one accepted or rejected."""
    share = r.settings.curation.heldout_share
    failed = {case.trajectory_id for case in corpus.cases}
    heldout = [t for t in corpus.trajectories if is_heldout(t, share) and t.id in failed]
    seen = [item for item in corpus.trajectories if not is_heldout(item, share)]
    shown = {item.id for item in seen}
    known = [case for case in corpus.cases if case.trajectory_id in shown]
    if len(tried) < 2 or len(heldout) < MIN_HELDOUT:
        return list(tried[:1])
    trials: list[Trial] = []
    for strategy in tried:
        deadline.check(f"trying strategy {strategy.id[:12]}")
        bundle = apply_strategy(strategy, seen, known, r.settings.seed).bundle
        scores = try_bundle(r, bundle, heldout)
        trials.append(Trial(scores, retained_turns(bundle), exemplars(bundle)))
    if not trials[0].scores:
        return list(tried[:1])
    reference = max(1, trials[0].num_turns)
    stage = "efficiency" if tried[1].stage == "efficiency" else "effectiveness"
    answer = accept(stage, trials[0], trials[1], reference)
    scored = [
        replace(
            strategy,
            scores={
                "success": trial.success,
                "turns": float(trial.num_turns),
                "worth": worth(trial.success, trial.num_turns, reference),
            },
        )
        for strategy, trial in zip(tried, trials, strict=True)
    ]
    return [scored[0], replace(scored[1], status="accepted" if answer.accepted else "rejected")]


def _line(bundle: Bundle, tried: Sequence[CurationStrategy], chosen: CurationStrategy) -> str:
    kept = f"{len(bundle.examples)} examples kept, {len(bundle.dropped)} conversations dropped"
    if len(tried) < 2 or not tried[1].scores or not tried[0].scores:
        return f"{kept}; strategy {chosen.id[:8]} in force"
    verdict = "replaces" if chosen is tried[1] else "does not replace"
    return (
        f"{kept}; rewrite {tried[1].id[:8]} ({tried[1].scores['success']:.3f} on held-out failures) "
        f"{verdict} {tried[0].id[:8]} ({tried[0].scores['success']:.3f})"
    )

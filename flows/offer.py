"""Offer: the challenger becomes a version in the registry with its evidence; the alias moves if the gate accepts it."""

import json
from datetime import UTC, datetime
from typing import Any

from components.evaluation.confusion import columns
from components.records import NightSummary
from components.serial import dump, load
from flows import plots, policies
from flows.resources import Resources
from flows.stage import Deadline, Stage, StageResult, Write, run_stage
from store import bundles, reports, strategies
from store.db import Conn


def offer(
    r: Resources, night: str, trained: dict[str, Any], evaluated: dict[str, Any]
) -> StageResult:
    """The stage. Registering the same checkpoint twice makes one version."""
    settings = r.settings
    stage = Stage(
        agent=r.settings.agent,
        night=night,
        name="offer",
        versions={},
        config={"promote": settings.gate.promote},
        inputs=(str(trained["challenger"]), str(evaluated["report_id"])),
    )

    def work(deadline: Deadline) -> Write:
        registry = policies.registry_of(r)
        accepted = bool(evaluated["accepted"])
        with r.db.connect() as conn:
            bundle = bundles.get(conn, trained["bundle"])
        lineage = {
            policies.ADAPTER: trained["challenger"],
            "night": night,
            "parent_version": trained["champion_version"],
            "bundle": bundle.id,
            "strategy": bundle.strategy_id,
            "memory_revision": str(trained["memory_revision"] or 0),
            "report": evaluated["report_id"],
            "gate": "accepted" if accepted else "refused",
        }
        folder = r.files.folder(trained["challenger"])
        version = registry.register(settings.agent, folder, lineage, trained.get("run_id"))
        if accepted:
            registry.offer(settings.agent, version)
        if accepted and settings.gate.promote == "auto":
            reason = f"gate accepted it in night {night}"
            registry.promote(settings.agent, version, "gate", reason, datetime.now(UTC))
        _log(r, night, trained, evaluated, {"version": version, "strategy": bundle.strategy_id})
        outcome = "offered as challenger" if accepted else "registered, not offered"

        def write(_conn: Conn) -> dict[str, Any]:
            return {
                "line": f"version {version} {outcome}",
                "version": version,
                "champion_version": trained["champion_version"],
            }

        return write

    return run_stage(r, stage, work)


def _log(
    r: Resources,
    night: str,
    trained: dict[str, Any],
    evaluated: dict[str, Any],
    offered: dict[str, str],
) -> None:
    """The evidence as one MLflow run."""
    figures = load(NightSummary, evaluated["summary"])
    params = {**offered, "champion": trained["champion_version"], "night": night}
    with r.db.connect() as conn:
        stored = reports.get(conn, evaluated["report_id"])
        strategy = strategies.get(conn, r.settings.agent, offered["strategy"])
    with r.tracking.run(r.settings.agent, f"offer {night}", params, {"night": night}) as run:
        run.log_metrics({f"success/{name}": arm.mean for name, arm in figures.arms.items()}, 0)
        run.log_metrics(
            {f"difference/{name}": pair.difference for name, pair in figures.paired.items()}, 0
        )
        run.log_figure(plots.arms(figures.arms), "success.png")
        if counts := figures.confusion:
            run.log_figure(plots.confusion(counts, columns(counts)), "failure_modes.png")
            run.log_text(json.dumps(counts, indent=1), "failure_modes.json")
        if strategy is not None:
            run.log_text(strategy.source, "strategy.py")
        if stored is not None:
            run.log_text(json.dumps(dump(stored.report), indent=1), "report.json")
        if stored is not None and stored.decision is not None:
            answers = {each.name: [each.passed, each.reason] for each in stored.decision.criteria}
            run.log_text(json.dumps(answers, indent=1), "gate.json")

"""What is kept and shown of a night: the summary row, the report in MLflow, the report on the screen."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from components.records import ModeLine, NightSummary, StageLine
from components.serial import dump, load
from flows.report import render
from flows.resources import Resources
from flows.stage import StageResult
from store import ledger, modes, nights, reports


def summarise(
    r: Resources, night: str, results: Sequence[StageResult], seconds: float
) -> NightSummary:
    """The figures of a night from what its stages gave."""
    output = {result.name: result.output for result in results}
    trained, evaluated = output.get("train", {}), output.get("evaluate", {})
    inside = sum(result.seconds for result in results)
    with r.db.connect() as conn:
        found = [mode for mode in modes.of_agent(conn, r.settings.agent) if mode.counts.get(night)]
        stored = reports.get(conn, evaluated["report_id"]) if evaluated.get("report_id") else None
        rows = [
            row for row in ledger.of_night(conn, r.settings.agent, night) if row.status == "done"
        ]
    spent = {row.stage: row.seconds or 0.0 for row in rows}
    decision = stored.decision if stored else None
    base = load(NightSummary, evaluated["summary"]) if "summary" in evaluated else _EMPTY
    return replace(
        base,
        stages=tuple(_stage_line(result, spent.get(result.name, 0.0)) for result in results),
        modes=tuple(
            ModeLine(mode.id, mode.name, mode.status, mode.counts[night]) for mode in found
        ),
        lessons=tuple(output.get("remember", {}).get("lessons", ())),
        rates={
            **base.rates,
            **trained.get("rates", {}),
            "orchestration_share": max(0.0, seconds - inside) / seconds,
        },
        counts=_counts(output),
        accepted=decision.accepted if decision else None,
        criteria=decision.criteria if decision else (),
        strategy_id=output.get("curate", {}).get("strategy_id"),
        bundle_id=output.get("curate", {}).get("bundle_id"),
        report_id=evaluated.get("report_id"),
        memory_revision=_text(output.get("remember", {}).get("revision")),
        challenger_digest=trained.get("challenger"),
        sft_only_digest=trained.get("sft_only"),
        note=_note(r, results),
    )


_EMPTY = NightSummary(stages=(), arms={}, paired={}, modes=(), lessons=(), rates={}, counts={})


def _stage_line(result: StageResult, spent: float) -> StageLine:
    """How a stage went. `spent`: seconds of the run that did it, which may be an earlier one."""
    line = result.cause or result.output.get("line", result.status)
    seconds = spent if result.status == "unchanged" else result.seconds
    return StageLine(result.name, result.status, seconds, line)


def _counts(output: dict[str, dict[str, object]]) -> dict[str, int]:
    wanted = {
        "ingest": ("trajectories", "quarantined"),
        "mine": ("cases", "modes"),
        "curate": ("examples", "dropped"),
        "train": ("sft_steps", "rl_steps"),
    }
    return {
        key: value
        for stage, keys in wanted.items()
        for key in keys
        if isinstance(value := output.get(stage, {}).get(key), int)
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _note(r: Resources, results: Sequence[StageResult]) -> str:
    if any(result.status == "failed" for result in results):
        return "Some stages failed; running the same night again tries only them."
    if r.settings.profile == "quick":
        return "Profile `quick`: every stage ran, with numbers too small to prove anything."
    return ""


def keep(
    r: Resources,
    night: str,
    before: nights.Night,
    made: NightSummary,
    results: Sequence[StageResult],
) -> None:
    """Write the night's row; a run that changed nothing leaves it as it was."""
    if is_unchanged(results) and before.status == "done":
        return
    failed = any(result.status == "failed" for result in results)
    offered = next((each.output for each in results if each.name == "offer"), {})
    row = replace(
        before,
        status="failed" if failed else "done",
        challenger_version=_text(offered.get("version")),
        summary=dump(made),
        finished_at=datetime.now(UTC),
    )
    with r.db.connect() as conn:
        nights.put(conn, row)


def is_unchanged(results: Sequence[StageResult]) -> bool:
    """Whether the ledger knew every stage already."""
    return all(result.status in ("unchanged", "skipped") for result in results)


def show(r: Resources, night: str, made: NightSummary, results: Sequence[StageResult]) -> None:
    """Print the report, or that nothing changed."""
    if is_unchanged(results):
        print(
            f"Night {night} is done already: nothing changed. New logs make the next night; "
            "`nightshift report` shows this one."
        )
        return
    print(render(night, r.settings.agent, made))

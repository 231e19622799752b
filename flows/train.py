"""Train: imitate what was corrected, then practise what fails, from the champion's weights.

Beside the challenger a second branch is kept that is trained by imitation alone, night after night, so that what
reinforcement learning adds is measured and not assumed. It takes every imitation step that the challenger takes, those
mixed into practice included. On the first night both share their imitation phase.
Too little data is a result: nothing is trained, and the line says why.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from components import plugins
from components.records import Bundle, FailureMode, ReferenceSolution, Sample, Task
from flows import policies
from flows.imitate import imitate, imitation_batches, imitation_samples
from flows.plots import reward_curve
from flows.practice import Arena, Rounds, practise, practise_anchors
from flows.resources import Resources
from flows.stage import Deadline, Stage, StageResult, Write, run_stage
from store import bundles, memory, modes, nights, references, tasks
from store.db import Conn
from store.runs import Run


@dataclass(frozen=True)
class Plan:
    """What a training starts from."""

    champion: policies.Champion
    sft_only: str | None
    """Last night's branch trained by imitation alone; None starts at the base model."""
    bundle: Bundle
    revision: int | None


def train(r: Resources, night: str, bundle_id: str, revision: int | None) -> StageResult:
    """The stage."""
    settings = r.settings
    champion = policies.champion_of_night(r, night)
    before = sft_only_before(r, night)
    stage = Stage(
        agent=r.settings.agent,
        night=night,
        name="train",
        versions={**policies.versions(settings), **_plugin_versions(r)},
        config={
            "train": settings.train.model_dump(mode="json"),
            "model": settings.model.model_dump(mode="json"),
            "memory": settings.memory.model_dump(mode="json"),
            "seed": settings.seed,
        },
        inputs=(bundle_id, str(revision), str(champion.adapter), str(before)),
    )

    def work(deadline: Deadline) -> Write:
        with r.db.connect() as conn:
            bundle = bundles.get(conn, bundle_id)
        plan = Plan(champion, before, bundle, revision)
        num = sum(example.kind != "preference" for example in bundle.examples)
        if num < settings.curation.min_examples:
            line = f"trained nothing, because {num} examples are fewer than {settings.curation.min_examples}"
            return lambda _conn: {"line": line}
        folder = scratch(r, stage.key)
        folder.mkdir(parents=True, exist_ok=True)
        tags = {"night": night, "bundle": bundle_id, "champion": champion.version}
        params = {"recipe": settings.train.recipe, **_flat(settings.train.model_dump(mode="json"))}
        with r.tracking.run(settings.agent, f"train {night}", params, tags) as run:
            return _train(r, night, plan, folder, Phases(run, deadline))

    return run_stage(r, stage, work)


def scratch(r: Resources, key: str) -> Path:
    """Where the training of this ledger key keeps its checkpoints until it is done."""
    return r.work / f"train-{key[:24]}"


@dataclass(frozen=True)
class Phases:
    run: Run
    deadline: Deadline


def _train(r: Resources, night: str, plan: Plan, folder: Path, phases: Phases) -> Write:
    sft = _once(
        folder / "sft.json",
        lambda: _imitate_from(r, plan, plan.champion.adapter, folder / "sft", phases, "sft"),
    )
    if not sft["samples"]:
        left_out = f"none of {len(plan.bundle.examples)} examples can be shown to the policy"
        line = f"trained nothing, because {left_out} (model.max_context {r.settings.model.max_context})"
        return lambda _conn: {"line": line}
    policy = policies.load(r, sft["adapter"])
    practised = _practise(r, night, plan, policy, (folder, phases))
    made, rounds = practised.tasks, practised.rounds
    challenger = practised.adapter or sft["adapter"]
    probe = _probe(r, policy, plan.bundle, plan.revision)
    sft_only = _sft_only(r, plan, sft["adapter"], folder, phases)
    output = {
        "line": _line(sft, rounds),
        "bundle": plan.bundle.id,
        "memory_revision": plan.revision,
        "champion": plan.champion.adapter,
        "champion_version": plan.champion.version,
        "sft": sft["adapter"],
        "sft_only": sft_only,
        "challenger": challenger,
        "probe": probe,
        "sft_steps": sft["steps"],
        "rl_steps": rounds.done,
        "practised": [task.id for task, _ in made],
        "run_id": phases.run.id,
        "rates": _rates(sft, rounds),
    }
    phases.run.log_text(json.dumps(output, indent=1), "train.json")

    def write(conn: Conn) -> dict[str, Any]:
        tasks.put(conn, [task for task, _ in made], night)
        references.put(conn, [solution for _, solution in made])
        memory.note_uses(conn, r.settings.agent, rounds.uses)
        return output

    shutil.rmtree(folder / "sft-only", ignore_errors=True)
    return write


class Practised(NamedTuple):
    tasks: list[tuple[Task, ReferenceSolution]]
    rounds: Rounds
    adapter: str | None
    """None when nothing was practised."""


def _practise(
    r: Resources, night: str, plan: Plan, policy: Any, place: tuple[Path, Phases]
) -> Practised:
    """Reinforcement learning from the imitating policy, in place."""
    if not (r.settings.environment and r.settings.train.rl.steps):
        return Practised([], Rounds(), None)
    folder, phases = place
    made = _propose(r, night)
    arena = Arena(
        policies.world_of(r.settings),
        [task for task, _ in made],
        plan.revision,
        imitation_samples(r, plan.bundle, policies.renderer_of(r, policy), plan.revision),
    )
    rounds = practise(r, policy, arena, folder / "rl", phases.deadline)
    for number, figures in enumerate(rounds.curve, 1):
        phases.run.log_metrics({f"practice/{key}": value for key, value in figures.items()}, number)
    for figures in rounds.steps:
        named = {f"rl/{key}": value for key, value in figures.items()}
        phases.run.log_metrics(named, int(figures["step"]))
    phases.run.log_figure(reward_curve(rounds.curve), "practice.png")
    return Practised(made, rounds, policies.keep(r, policy, _about(night, plan, "challenger")))


def _once(mark: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a phase, kept beside its checkpoints so that a later kill does not repeat it."""
    if mark.is_file():
        return json.loads(mark.read_text())
    made = work()
    unfinished = mark.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(made))
    os.replace(unfinished, mark)
    return made


def _imitate_from(
    r: Resources, plan: Plan, adapter: str | None, folder: Path, phases: Phases, name: str
) -> dict[str, Any]:
    """One imitation phase from an adapter; the adapter it made, with its figures."""
    policy = policies.load(r, adapter)
    samples = imitation_samples(r, plan.bundle, policies.renderer_of(r, policy), plan.revision)
    what = "imitating" if name == "sft" else "imitating, the branch without RL"
    batches = imitation_batches(r, samples, _imitated_before(r, plan.bundle, plan.champion.adapter))
    steps, metrics = imitate(r, policy, batches, folder, phases.deadline, what)
    for each in metrics:
        phases.run.log_metrics(
            {f"{name}/{key}": value for key, value in each.figures().items()}, each.step
        )
    kept = policies.keep(r, policy, {"phase": name, "bundle": plan.bundle.id, "from": adapter})
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "adapter": kept,
        "steps": steps,
        "samples": len(samples),
        "loss_first": metrics[0].loss if metrics else None,
        "loss_last": metrics[-1].loss if metrics else None,
        "trained_tokens_per_s": fmean([each.tokens_per_s for each in metrics]) if metrics else 0.0,
    }


def _imitated_before(r: Resources, bundle: Bundle, adapter: str | None) -> set[str]:
    """The bundle's trajectories that this adapter was trained on already, as they are now."""
    if adapter is None:
        return set()
    about = json.loads((r.files.folder(adapter) / policies.ABOUT).read_text())
    if "bundle" not in about:  # it was not made by a night
        return set()
    with r.db.connect() as conn:
        earlier = {example.id for example in bundles.get(conn, about["bundle"]).examples}
    wanted = [example for example in bundle.examples if example.kind != "preference"]
    new = {example.trajectory_id for example in wanted if example.id not in earlier}
    return {example.trajectory_id for example in wanted} - new


def _sft_only(r: Resources, plan: Plan, shared: str, folder: Path, phases: Phases) -> str | None:
    """Tonight's adapter of the branch trained by imitation alone."""
    if not r.settings.train.ablation:
        return None
    imitated = shared
    if plan.sft_only != plan.champion.adapter:
        made = _once(
            folder / "sft-only.json",
            lambda: _imitate_from(r, plan, plan.sft_only, folder / "sft-only", phases, "sft_only"),
        )
        imitated = made["adapter"]
    if not (r.settings.environment and r.settings.train.rl.steps):
        return imitated
    policy = policies.load(r, imitated)
    samples = imitation_samples(r, plan.bundle, policies.renderer_of(r, policy), plan.revision)
    practise_anchors(r, policy, samples, phases.deadline)
    return policies.keep(r, policy, {"phase": "sft_only", "bundle": plan.bundle.id})


def sft_only_before(r: Resources, night: str) -> str | None:
    """The imitation branch of the last night before this one that trained."""
    with r.db.connect() as conn:
        past = nights.recent(conn, r.settings.agent)
    for row in past:
        if row.night < night and row.summary and row.summary.get("sft_only_digest"):
            return row.summary["sft_only_digest"]
    return None


def _propose(r: Resources, night: str) -> list[tuple[Task, ReferenceSolution]]:
    """The pool of practice tasks, aimed at the modes seen tonight."""
    section = r.settings.train.rl
    proposer = plugins.make("synthesis", section.proposer.name, section.proposer.options)
    with r.db.connect() as conn:
        known = modes.of_agent(conn, r.settings.agent)
    seen: list[FailureMode] = [mode for mode in known if mode.counts.get(night)]
    rng = Random(f"{r.settings.seed}-{night}")
    return proposer.propose(seen, policies.world_of(r.settings), section.pool, rng)


def _probe(r: Resources, policy: Any, bundle: Bundle, revision: int | None) -> str:
    """Log-probabilities that the trained policy gives to a few sequences, for the proof of delivery."""
    samples: Sequence[Sample] = imitation_samples(
        r, bundle, policies.renderer_of(r, policy), revision
    )[:3]
    rows = [
        {
            "ids": list(sample.input_ids_T),
            "logprobs": list(policy.probe_logprobs(sample.input_ids_T)),
        }
        for sample in samples
    ]
    return r.files.put_bytes(json.dumps(rows).encode())


def _plugin_versions(r: Resources) -> dict[str, str]:
    section = r.settings.train.rl
    parts = [("credit", part) for part in section.credit]
    parts += [("rewards", part) for part in section.rewards]
    parts += [("curriculum", section.curriculum), ("synthesis", section.proposer)]
    return {
        f"{kind}/{part.name}": plugins.version_of(plugins.make(kind, part.name, part.options))
        for kind, part in parts
    }


def _about(night: str, plan: Plan, role: str) -> dict[str, Any]:
    return {
        "role": role,
        "night": night,
        "bundle": plan.bundle.id,
        "strategy": plan.bundle.strategy_id,
        "champion": plan.champion.adapter,
        "memory_revision": plan.revision,
    }


def _rates(sft: dict[str, Any], rounds: Rounds) -> dict[str, float]:
    rates = {"trained_tokens_per_s": sft["trained_tokens_per_s"]}
    if rounds.curve:
        rates["sampled_tokens_per_s"] = fmean(
            figures["sampled_tokens_per_s"] for figures in rounds.curve
        )
    return rates


def _line(sft: dict[str, Any], rounds: Rounds) -> str:
    line = f"imitated {sft['samples']} examples in {sft['steps']} steps"
    if rounds.curve:
        line += f"; practised {rounds.done} rounds"
        judged = [figures["success"] for figures in rounds.curve if "success" in figures]
        line += f", success {judged[0]:.0%} -> {judged[-1]:.0%}" if judged else ", none judged"
    return line


def _flat(tree: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{before}{key}."))
        else:
            flat[f"{before}{key}"] = value
    return flat

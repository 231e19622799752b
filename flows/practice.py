"""Practise: reinforcement learning on tasks aimed at tonight's failure modes.

One round: choose tasks, roll out groups, keep those with a learning signal (and roll out more until the round is full or
the limit is reached), assign credit, update: one or several optimizer steps, each on its share of the groups. Later steps
of a round are a little off-policy, which the importance ratio and its clip account for. After each round the checkpoint
and then a small state file are written; a killed run goes on from the round that the state file names, with the same
tasks, seeds and weights.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from components import plugins
from components.credit.order import assign
from components.errors import RecordError
from components.learner import checkpoint, heap
from components.learner.learner import Learner
from components.learner.loss import LossSettings
from components.memory.recall import memory_block
from components.protocols import Curriculum, Reward, World
from components.records import Group, MemoryEntry, Sample, Task, Trajectory
from components.tokens import merge_prefixes
from flows import policies
from flows.imitate import learner_settings
from flows.remember import recall
from flows.resources import Resources
from flows.rollouts import Episodes, Practice, roll_out
from flows.settings import Plugin
from flows.stage import Deadline

STATE = "rounds.json"


@dataclass
class Rounds:
    """Where practice stands; plain JSON beside the checkpoints."""

    done: int = 0
    learner_step: int = 0
    success_rates: dict[str, float] = field(default_factory=dict)
    """Task id, skill set or skill -> share of judged rollouts that succeeded; for sets and skills recent tasks weigh more."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """What was seen in each round."""
    steps: list[dict[str, float]] = field(default_factory=list)
    """Figures of each optimizer step that was applied."""
    uses: list[tuple[str, str, int, bool]] = field(default_factory=list)
    """Trajectory, memory entry, its version, and whether the trajectory succeeded."""


@dataclass(frozen=True)
class Arena:
    """What practice is played on."""

    world: World
    pool: Sequence[Task]
    revision: int | None
    anchors: Sequence[Sample] = ()
    """Imitation samples, of which every step takes some along."""


def practise(r: Resources, policy: Any, arena: Arena, folder: Path, deadline: Deadline) -> Rounds:
    """Train the policy in place and return the curve of its rounds."""
    section = r.settings.train.rl
    learner = _learner(r, policy)
    rounds = _resume(r, folder, learner)
    part, known = section.curriculum, {"group_size": section.group_size}
    curriculum = plugins.make("curriculum", part.name, part.options, known)
    actor = None
    while rounds.done < section.steps:
        deadline.check(f"practice round {rounds.done + 1} of {section.steps}")
        actor = policies.actor_of(r, policy, f"practice-{rounds.done}", actor)
        played = _play_round(r, actor, arena, curriculum, rounds)
        steps = [
            learner.update(batch, zero_variance_rate=played.figures["zero_variance_rate"])
            for batch in step_batches(r, played, arena.anchors, rounds.done)
        ]
        heap.release()
        rounds.done += 1
        rounds.learner_step = learner.step
        rounds.curve.append(played.figures)
        for metrics in steps:
            if not metrics.skipped:
                rounds.steps.append(metrics.figures())
            else:
                r.log(f"practice round {rounds.done}: nothing applied, {metrics.skipped}")
        _save(folder, learner, rounds)
    return rounds


def step_batches(
    r: Resources, played: "Played", anchors: Sequence[Sample], done: int
) -> list[list[Sample]]:
    """The samples of each optimizer step of one round: its share of the groups, and anchors of its own."""
    section = r.settings.train.rl
    num = section.updates
    solved = played.solved if section.hold_solved else []
    return [
        [
            *_credited(r, played.admitted[index::num]),
            *(sample for group in solved[index::num] for sample in _success_to_hold(group)),
            *anchor_batch(r, anchors, done * num + index),
        ]
        for index in range(num)
    ]


def _success_to_hold(group: Group) -> list[Sample]:
    """One trajectory of a group that is solved throughout, to be imitated."""
    return [
        replace(sample, ce_weights_T=tuple(float(sampled) for sampled in sample.action_mask_T))
        for sample in merge_prefixes(group.trajectories_G[0])
    ]


def practise_anchors(
    r: Resources, policy: Any, anchors: Sequence[Sample], deadline: Deadline
) -> None:
    """The imitation part of practice alone: the same batches in the same steps, no rollouts."""
    learner = _learner(r, policy)
    section = r.settings.train.rl
    num = section.steps * section.updates
    for step in r.track(range(num), "imitating, the branch without RL"):
        deadline.check(f"imitating without RL, step {step + 1}")
        learner.update(anchor_batch(r, anchors, step))
    heap.release()


def _learner(r: Resources, policy: Any) -> Learner:
    section = r.settings.train.rl
    loss = LossSettings(**section.loss)
    rate = learner_settings(
        r,
        section.lr,
        section.warmup_steps,
        total_steps=section.steps * section.updates,
        temperature=section.temperature,
        loss=loss,
    )
    return Learner(policy, rate)


def anchor_batch(r: Resources, anchors: Sequence[Sample], step: int) -> list[Sample]:
    """The imitation samples that one practice step takes along, so that practice does not unlearn them.

    Source: the pretraining mix of PPO-ptx, arXiv 2203.02155, equation 2; our choice: the night's own examples.
    """
    num = min(r.settings.train.rl.anchor_batch, len(anchors))
    return Random(f"{r.settings.seed}-anchors-{step}").sample(list(anchors), num)


class Played(NamedTuple):
    admitted: list[Group]
    """Groups with a learning signal."""
    solved: list[Group]
    """The others whose every trajectory succeeded."""
    figures: dict[str, float]


def _play_round(
    r: Resources, actor: policies.Actor, arena: Arena, curriculum: Curriculum, rounds: Rounds
) -> Played:
    """Groups with a learning signal, and what was seen on the way to them."""
    section = r.settings.train.rl
    rng = Random(f"{r.settings.seed}-{rounds.done}")
    admitted: list[Group] = []
    solved: list[Group] = []
    played: list[Group] = []
    limit = int(section.tasks * section.max_oversample)
    while len(admitted) < section.tasks and len(played) < limit:
        wanted = wave(section.tasks - len(admitted), limit - len(played), rounds)
        fresh = [task for task in arena.pool if task.id not in {g.task.id for g in played}]
        tasks = curriculum.select(fresh, wanted, rounds.success_rates, rng)
        if not tasks:
            break
        entries = recall(r, arena.revision, [task.instruction for task in tasks])
        memory = [memory_block(some, r.settings.memory.max_chars).text for some in entries]
        practice = Practice(
            group_size=section.group_size,
            temperature=section.temperature,
            max_tokens=section.max_tokens,
            seed=r.settings.seed + 1000 * (rounds.done + 1),
            what=f"practising, round {rounds.done + 1} of {section.steps}",
        )
        rolled = roll_out(r, actor, Episodes(arena.world, tasks, memory), practice)
        for task, some, trajectories in zip(tasks, entries, rolled, strict=True):
            rounds.uses += uses_of(some, trajectories)
            group = rewarded(r, task, trajectories)
            played.append(group)
            learn_rates(rounds.success_rates, task, _success_rate(trajectories))
            if curriculum.can_admit(group):
                admitted.append(group)
            elif all(item.outcome for item in trajectories):
                solved.append(group)
    return Played(admitted, solved, _figures(played, admitted, actor.engine))


def wave(missing: int, left: int, rounds: Rounds) -> int:
    """How many tasks to roll out together, so that the missing groups have a signal: as in the round before, else half.

    One large wave keeps the engine full; several small ones each wait for their longest episode.
    """
    share = 1 - rounds.curve[-1]["zero_variance_rate"] if rounds.curve else 0.5
    return min(left, math.ceil(missing / max(share, 1 / left)))


def uses_of(
    entries: Sequence[MemoryEntry], trajectories: Sequence[Trajectory]
) -> list[tuple[str, str, int, bool]]:
    """Which recalled entries each judged trajectory had in its prompt, and how it ended."""
    return [
        (item.id, entry.id, entry.version, item.outcome)
        for item in trajectories
        for entry in entries
        if item.outcome is not None
    ]


def rewarded(r: Resources, task: Task, trajectories: Sequence[Trajectory]) -> Group:
    """A group with its reward channels filled; a reward that is no number is none.

    Raises:
        RecordError: a reward plug-in failed, or gave another number of rewards than there are trajectories.
    """
    channels: dict[str, tuple[float | None, ...]] = {}
    for part in r.settings.train.rl.rewards:
        rewards_G = _scored(part, task, trajectories)
        odd = [
            item.id
            for item, value in zip(trajectories, rewards_G, strict=True)
            if value is not None and not math.isfinite(value)
        ]
        if odd:
            r.log(
                f"reward plug-in {part.name!r} gave no finite number for {len(odd)} of {len(rewards_G)} "
                f"trajectories of task {task.id!r}, first {odd[0]!r}: they count as not scored"
            )
        channels[part.name] = tuple(
            value if value is not None and math.isfinite(value) else None for value in rewards_G
        )
    return Group(task, tuple(trajectories), channels)


def _scored(
    part: Plugin, task: Task, trajectories: Sequence[Trajectory]
) -> tuple[float | None, ...]:
    """What one reward plug-in says of a group."""
    plug_in: Reward = plugins.make("rewards", part.name, part.options)
    try:
        rewards_G = tuple(plug_in.score(task, trajectories))
    except Exception as error:
        raise RecordError(
            f"reward plug-in {part.name!r} failed on task {task.id!r}, trajectories "
            f"{', '.join(repr(item.id) for item in trajectories[:3])}: {error!r}"
        ) from error
    if len(rewards_G) != len(trajectories):
        raise RecordError(
            f"reward plug-in {part.name!r} on task {task.id!r} must give one reward per trajectory: "
            f"got {len(rewards_G)}, expected {len(trajectories)}"
        )
    return rewards_G


def _credited(r: Resources, groups: Sequence[Group]) -> list[Sample]:
    """Samples of all groups with the streams that the recipe's credit plug-ins write."""
    parts = [plugins.make("credit", part.name, part.options) for part in r.settings.train.rl.credit]
    credited: list[Sample] = []
    for group in groups:
        samples = [
            sample for trajectory in group.trajectories_G for sample in merge_prefixes(trajectory)
        ]
        credited += assign(group, samples, parts).samples
    return credited


def learn_rates(rates: dict[str, float], task: Task, success: float | None) -> None:
    """Note a task's success, and move the rates of its skill set and of each skill half way to it; None teaches nothing."""
    if success is None:
        return
    rates[task.id] = success
    for name in dict.fromkeys((task.skill_set, *task.required_skills)):
        rates[name] = (rates.get(name, success) + success) / 2


def _success_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """Share of the judged trajectories that succeeded; None where none was judged."""
    known = [float(item.outcome) for item in trajectories if item.outcome is not None]
    return fmean(known) if known else None


def _figures(played: Sequence[Group], admitted: Sequence[Group], engine: Any) -> dict[str, float]:
    episodes = [item for group in played for item in group.trajectories_G]
    lengths = [len(turn.completion_ids or ()) for item in episodes for turn in item.turns]
    success = _success_rate(episodes)
    return {
        **({} if success is None else {"success": success}),
        "groups_played": float(len(played)),
        "groups_with_signal": float(len(admitted)),
        "zero_variance_rate": 1 - len(admitted) / len(played) if played else 0.0,
        "mean_action_tokens": fmean(lengths) if lengths else 0.0,
        "sampled_tokens_per_s": policies.tokens_per_s(engine),
    }


def _save(folder: Path, learner: Learner, rounds: Rounds) -> None:
    checkpoint.save(folder, learner)
    unfinished = folder / f"{STATE}.unfinished"
    unfinished.write_text(json.dumps(vars(rounds)))
    os.replace(unfinished, folder / STATE)


def _resume(r: Resources, folder: Path, learner: Learner) -> Rounds:
    """The state file and the checkpoint that it names; a fresh start when either is missing."""
    checkpoint.latest(folder)
    try:
        rounds = Rounds(**json.loads((folder / STATE).read_text()))
    except FileNotFoundError:
        return Rounds()
    place = folder / f"{checkpoint.PREFIX}{rounds.learner_step:06d}"
    if rounds.learner_step and checkpoint.problem(place) is not None:
        r.log(f"{place.name} is not complete; practice starts over")
        return Rounds()
    if rounds.learner_step:
        checkpoint.resume(place, learner)
        r.log(f"continuing from practice round {rounds.done}")
    return rounds

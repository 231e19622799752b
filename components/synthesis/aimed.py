"""Training tasks aimed at failure modes: the world's own tasks, drawn more often where the agent fails.

    w_m = cases of mode m tonight * weight of its status          0 for a mode that names no skill
    skill_weights[s] = 1 + strength * (sum of w_m with skill s) / (largest such sum)

A mode's skills are its tool and its kind, as far as a task of the world requires them. Every candidate passes a gate: the
untouched world fails the verifier, the executed reference passes it, its split is `train`, and neither its id nor its words
are among the evaluation tasks. A task seen twice is taken once. Tasks that stress a mode come first, heaviest modes first
in turn; `routine_rate` of the places stay with tasks as the world draws them, so that what works is not forgotten: where
nine tenths were aimed, practice raised the modes and lost a kind that had worked (docs/experiments.md).

Source: the three-way gate and tasks by failure pattern follow SENTINEL (arXiv 2606.12908); resolved patterns get no tasks.
Our choice: weights of the statuses, the formula. Without modes every task is routine. A world that runs out of tasks gives
fewer than asked.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

from components.plugins import plugin, version_of
from components.protocols import World
from components.records import (
    FailureMode,
    Lineage,
    Message,
    ModeStatus,
    ReferenceSolution,
    Task,
    Trajectory,
    Turn,
)
from components.serial import digest

STATUS_WEIGHTS: dict[ModeStatus, float] = {
    "new": 1.0,
    "growing": 1.5,
    "recurring": 1.0,
    "regressed": 1.5,
    "mitigated": 0.5,
    "fixed": 0.0,
}
Pair = tuple[Task, ReferenceSolution]


@plugin
class Aimed:
    strength: float = 4.0
    """How much more often tasks of the heaviest skill are drawn, at least 0."""
    routine_rate: float = 0.5
    """Share of places for tasks as the world draws them, whatever they stress, in [0, 1]."""
    rounds: int = 4
    """Draws from the world, each of twice the tasks that are missing or of all that are wanted; at least 1."""
    held_out: tuple[str, ...] = ()
    """Ids and instructions of evaluation tasks; none of them is proposed."""

    def __post_init__(self) -> None:
        if self.strength < 0 or not 0 <= self.routine_rate <= 1 or self.rounds < 1:
            raise ValueError(
                "expected strength >= 0, routine_rate in [0, 1] and rounds >= 1, "
                f"got {self.strength!r}, {self.routine_rate!r}, {self.rounds!r}"
            )

    def propose(
        self, modes: Sequence[FailureMode], world: World, num: int, rng: Random
    ) -> list[Pair]:
        """At most `num` tasks with their references; `modes` and lineage of each task are filled in."""
        weights = {id: weight for id, weight in mode_weights(modes).items() if weight}
        aims = self._skill_weights(modes, weights)
        active = [mode for mode in modes if mode.id in weights]
        draw = partial(self._draw, world, rng, active, set[str]())
        num_routine = round(self.routine_rate * num) if aims else num
        routine: list[Pair] = []
        for _ in range(self.rounds):
            if (missing := num_routine - len(routine)) > 0:
                routine += draw(max(num, 2 * missing), None)
        total = sum(weights.values())
        quotas = {id: round((num - num_routine) * w / total) for id, w in weights.items()}
        by_mode: dict[str, list[Pair]] = defaultdict(list)
        for _ in range(self.rounds):
            if missing := sum(max(0, quotas[id] - len(by_mode[id])) for id in quotas):
                for task, reference in draw(max(num, 2 * missing), aims):
                    needs = {id: quotas[id] - len(by_mode[id]) for id in task.modes}
                    place = (
                        by_mode[max(needs, key=lambda id: (needs[id], id))] if needs else routine
                    )
                    place.append((task, reference))
        return _fill(by_mode, routine, weights, num, num_routine)

    def _draw(
        self,
        world: World,
        rng: Random,
        modes: Sequence[FailureMode],
        seen: set[str],
        num: int,
        aims: dict[str, float] | None,
    ) -> list[Pair]:
        """The candidates of one draw that may be trained on, each once, signed with the modes that they stress."""
        held_out = {_plain(text) for text in self.held_out}
        sound: list[Pair] = []
        for task, reference in world.tasks(num, "train", rng, aims):
            if task.id in seen or task.split != "train":
                continue
            seen.add(task.id)
            if held_out & {_plain(task.id), _plain(task.instruction)}:
                continue
            if passes_gate(world, task, reference):
                sound.append((self._signed(task, _stressed(task, modes)), reference))
        return sound

    def _skill_weights(
        self, modes: Sequence[FailureMode], weights: dict[str, float]
    ) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for mode in modes:
            for skill in _skills(mode):
                sums[skill] += weights.get(mode.id, 0.0)
        top = max(sums.values(), default=0.0)
        return {s: 1.0 + self.strength * value / top for s, value in sums.items() if value > 0}

    def _signed(self, task: Task, stressed: Sequence[FailureMode]) -> Task:
        ids = tuple(sorted(mode.id for mode in stressed))
        parents = (*ids, *(task.lineage.parents if task.lineage else ()))
        config = digest(dataclasses.asdict(self))
        lineage = Lineage(parents, "synthesis/aimed", version_of(self), "template", config)
        return replace(task, modes=ids, lineage=lineage)


def mode_weights(modes: Sequence[FailureMode]) -> dict[str, float]:
    """Mode id -> how much it matters tonight, the last night that any of them was counted."""
    tonight = max((night for mode in modes for night in mode.counts), default="")
    return {m.id: m.counts.get(tonight, 0) * STATUS_WEIGHTS[m.status] for m in modes}


def _skills(mode: FailureMode) -> tuple[str, ...]:
    kind = mode.signature.split("|")[0]
    return (mode.tool, kind) if mode.tool else (kind,)


def _stressed(task: Task, modes: Sequence[FailureMode]) -> list[FailureMode]:
    """The modes of which the task requires a skill."""
    return [mode for mode in modes if any(s in task.required_skills for s in _skills(mode))]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def passes_gate(world: World, task: Task, reference: ReferenceSolution) -> bool:
    """Whether doing nothing fails and the reference, executed step by step, passes."""
    idle = Trajectory(f"{task.id}-idle", "gate", (), task_id=task.id, stop_reason="done")
    if world.verify(task, idle).success is not False:
        return False
    return world.verify(task, _executed(world, task, reference)).success is True


def _executed(world: World, task: Task, reference: ReferenceSolution) -> Trajectory:
    environment = world.open(task)
    observation: tuple[Message, ...] = environment.opening
    turns: list[Turn] = []
    for index, action in enumerate(reference.actions):
        turns.append(Turn(index, observation, action, "replay"))
        result = environment.step(action)
        observation = result.observation
        if result.done:
            break
    id = f"{task.id}-reference"
    return Trajectory(
        id, "gate", tuple(turns), task_id=task.id, stop_reason="done", tail=observation
    )


def _fill(
    by_mode: dict[str, list[Pair]],
    routine: list[Pair],
    weights: dict[str, float],
    num: int,
    num_routine: int,
) -> list[Pair]:
    """Routine tasks, then aimed ones, each mode in proportion to its weight, then what is spare."""
    chosen = routine[:num_routine]
    taken = dict.fromkeys(by_mode, 0)
    while len(chosen) < num:
        left = [mode for mode in by_mode if taken[mode] < len(by_mode[mode])]
        if not left:
            break
        mode = min(left, key=lambda mode: ((taken[mode] + 1) / weights[mode], mode))
        chosen.append(by_mode[mode][taken[mode]])
        taken[mode] += 1
    spare = routine[num_routine : num_routine + num - len(chosen)]
    return [*chosen, *spare]

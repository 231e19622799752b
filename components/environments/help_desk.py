"""A small retail help desk: orders, products, a policy in one paragraph, eleven tools, customers who want one thing.

The agent reads the policy and the customer's words, looks records up, changes them or refuses, and ends with one reply.
A task is solved when the shop stands as the request demands, the reply tells the customer so, what it tells was looked
up, and no rule of the policy was broken. Doing nothing solves nothing: questions need a looked-up answer, and a wish that
the policy forbids needs an escalation with its reason.

Example of a task with its solution:

    customer   Can you cancel my order W482?
    agent      get_order {"order": "W482"}
    tool       {"item":"red mug","price":24,"status":"packed"}
    agent      cancel_order {"order": "W482"}
    tool       {"status":"cancelled"}
    agent      Order W482 is cancelled.

Our choice: everything here (shop, wordings, rules). Skills of a task are its kind and the tools of its solution.
Difficulty: which kinds, how many wishes are refused, how many customers do not know their order's number, and, in dev
and test only, how many speak in words that training never sees.
Degenerate case: weights that leave no kind to draw are an error.
"""

import functools
from dataclasses import replace
from random import Random
from typing import Any, Literal

from components.environments._help_desk_episode import Episode
from components.environments._help_desk_judge import judge
from components.environments._help_desk_shop import TOOLS
from components.environments._help_desk_solver import solve
from components.environments._help_desk_tasks import KINDS, PRODUCT_WISHES, Request, Variant, draw
from components.errors import EnvError
from components.plugins import plugin, version_of
from components.records import Lineage, Message, ReferenceSolution, Task, Trajectory, Verdict
from components.serial import digest

NAME = "help_desk"
MAX_DRAWS_PER_TASK = 200


@plugin
class HelpDesk:
    kinds: tuple[str, ...] = ()
    """Kinds of request to draw; empty for all."""
    read_rate: float = 0.3
    """Share of requests that only ask, in [0, 1]."""
    refusal_rate: float = 0.25
    """Share of requests that the policy forbids, in [0, 1]; the rest change the shop."""
    email_rate: float = 0.15
    """Share of customers who name the thing and their e-mail instead of the order's number, in [0, 1]."""
    new_wording_rate: float = 0.5
    """Share of dev and test requests in words that training never sees, in [0, 1]."""
    max_turns: int = 7
    """Actions of the agent after which an episode ends."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(KINDS))
        if unknown:
            raise ValueError(f"unknown kinds {unknown!r}; available: {', '.join(KINDS)}")
        rates = {
            "read_rate": self.read_rate,
            "refusal_rate": self.refusal_rate,
            "email_rate": self.email_rate,
            "new_wording_rate": self.new_wording_rate,
            "read_rate + refusal_rate": self.read_rate + self.refusal_rate,
        }
        for name, rate in rates.items():
            if not 0 <= rate <= 1:
                raise ValueError(f"{name} must lie in [0, 1]: got {rate!r}")
        if self.max_turns < 1:
            raise ValueError(f"max_turns must be at least 1: got {self.max_turns!r}")

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        return TOOLS

    def tasks(
        self,
        num: int,
        split: Literal["train", "dev", "test"],
        rng: Random,
        skill_weights: dict[str, float] | None = None,
    ) -> list[tuple[Task, ReferenceSolution]]:
        """New solvable tasks with executed solutions; equal seeds give equal tasks.

        `skill_weights` multiplies how often a request is drawn, once for each of its skills; a skill that no request
        needs changes nothing.
        """
        if any(weight < 0 for weight in (skill_weights or {}).values()):
            raise ValueError(f"skill weights must be >= 0: got {skill_weights!r}")
        variants = self._variants(skill_weights or {})
        lineage = Lineage(
            (), f"environments/{NAME}", _version(type(self)), "template", digest(self)
        )
        made: dict[str, tuple[Task, ReferenceSolution]] = {}
        for _ in range(num * MAX_DRAWS_PER_TASK):
            if len(made) == num:
                break
            (variant,) = rng.choices(list(variants), weights=list(variants.values()))
            new_wording = split != "train" and rng.random() < self.new_wording_rate
            task = _task(draw(variant, split, new_wording, rng), split, lineage)
            if task.id not in made:
                made[task.id] = (task, self._reference(task))
        if len(made) < num:
            raise ValueError(
                f"only {len(made)} different {split} tasks exist for these options and weights: "
                f"{num} were wanted; allow more kinds or ask for fewer"
            )
        return list(made.values())

    def _variants(self, skill_weights: dict[str, float]) -> dict[Variant, float]:
        """How often each variant is drawn, relative to the others."""
        rates = {
            "read": self.read_rate,
            "refused": self.refusal_rate,
            "write": 1 - self.read_rate - self.refusal_rate,
        }
        chosen = self.kinds or tuple(KINDS)
        sizes = {group: sum(KINDS[kind].group == group for kind in chosen) for group in rates}
        variants: dict[Variant, float] = {}
        for kind in chosen:
            group = KINDS[kind].group
            by_email = 0.0 if KINDS[kind].wish in PRODUCT_WISHES else self.email_rate
            for variant, share in (
                (Variant(kind, False), 1 - by_email),
                (Variant(kind, True), by_email),
            ):
                weight = rates[group] / sizes[group] * share
                for skill in variant.skills:
                    weight *= skill_weights.get(skill, 1.0)
                if weight > 0:
                    variants[variant] = weight
        if not variants:
            raise ValueError(
                f"no kind of request is left to draw: kinds {list(chosen)!r}, rates {rates!r}, "
                f"skill weights {skill_weights!r}"
            )
        return variants

    def _reference(self, task: Task) -> ReferenceSolution:
        conversation = self.operator_solution(task)
        actions = tuple(message for message in conversation if message.role == "assistant")
        return ReferenceSolution(task.id, actions)

    def open(self, task: Task) -> Episode:
        """The episode of a task.

        Raises:
            EnvError: the task is not one of the help desk's.
        """
        if task.environment != NAME or not {"kind", "said", "shop", "goal"} <= set(task.params):
            raise EnvError(
                f"task {task.id!r} is no help desk task: environment {task.environment!r}, "
                f"params {sorted(task.params)!r}; expected kind, said, shop, goal"
            )
        return Episode(task.params["shop"], task.instruction, self.max_turns)

    def operator_solution(self, task: Task) -> list[Message]:
        """What a person would have done: calls, tool results and the reply, from the customer's words on."""
        return solve(task.params["kind"], task.params["said"], self.open(task))

    def verify(self, task: Task, trajectory: Trajectory) -> Verdict:
        """Execute the agent's actions again in a fresh shop and judge the end; a person's turns do not count.

        An episode that stopped for an error outside the agent is not judged.
        """
        version = _version(type(self))
        if (trajectory.stop_reason or "").startswith("error"):
            return Verdict(trajectory.id, NAME, version, None, None, {})
        episode = self.open(task)
        for turn in trajectory.turns:
            if turn.executor != "human" and not episode.done:
                episode.step(turn.action)
        criteria = judge(episode, task.params["shop"], task.params["goal"])
        success = all(value == 1.0 for value in criteria.values())
        return Verdict(trajectory.id, NAME, version, success, float(success), criteria, 1.0)


def _task(request: Request, split: Literal["train", "dev", "test"], lineage: Lineage) -> Task:
    content = {"instruction": request.instruction, "params": request.params}
    task = Task(
        id=f"desk-{digest(content)[:16]}",
        instruction=request.instruction,
        environment=NAME,
        params=request.params,
        tools=TOOLS,
        required_skills=tuple(dict.fromkeys(request.variant.skills)),
        split=split,
    )
    return replace(task, lineage=lineage)


@functools.cache
def _version(cls: type[HelpDesk]) -> str:
    return version_of(cls())

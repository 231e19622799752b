"""Proofs for the gate: that the evaluated adapter is the trained one, and that nothing trained on is evaluated.

Delivery: the adapter read back from the store gives the probe sequences the log-probabilities that the trainer noted, the
parent does not, and what the engine said while it was evaluated agrees with the trainer's arithmetic on the same tokens.
Disjoint: no evaluation task shares its id, its words, or thirteen words in a row with anything trained on tonight.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from components.protocols import Sampling
from components.records import Trajectory
from flows import policies
from flows.replay import held_out_conversations
from flows.resources import Resources
from flows.splits import overlaps, said_by_user
from store import bundles, tasks, trajectories

SAME_WEIGHTS = 1e-3
"""Largest difference of a log-probability between trainer and stored adapter (same arithmetic, same order)."""
SAME_POLICY = 0.2
"""Largest mean difference between engine and trainer, whose attention rounds differently in bfloat16."""
SAMPLED_TOKENS = 8
"""Tokens that an engine samples after each probe sequence where no episode was evaluated."""


def gather_facts(
    r: Resources, night: str, trained: dict[str, Any], task_ids: Sequence[str]
) -> dict[str, bool | None]:
    """What the gate asks for beside the report."""
    return {
        "delivery": is_delivered(r, night, trained),
        "disjoint": is_disjoint(r, night, trained, task_ids),
        "no_older_suites": True,  # the held-out tasks are the same every night
    }


def is_delivered(r: Resources, night: str, trained: dict[str, Any]) -> bool | None:
    """Whether the stored adapter is the trained one and the engine sampled from it."""
    rows = json.loads(r.files.get_bytes(trained["probe"]))
    if not rows:
        return None
    stored = policies.load(r, trained["challenger"])
    parent = policies.load(r, trained["champion"])
    same = max(_gap(stored, row) for row in rows)
    other = max(_gap(parent, row) for row in rows)
    version = policies.version_name(trained["challenger"])
    said = _evaluated_gaps(r, night, stored, version) or _sampled_gaps(r, rows, stored, version)
    heard = fmean(said)
    r.log(
        f"delivery: stored adapter {same:.2g} from the trainer, parent {other:.2g}, engine {heard:.2g}"
    )
    return same <= SAME_WEIGHTS < other and heard <= SAME_POLICY


def _gap(policy: Any, row: dict[str, Any]) -> float:
    now = policy.probe_logprobs(tuple(row["ids"]))
    return max(abs(a - b) for a, b in zip(now, row["logprobs"], strict=True))


def _evaluated_gaps(r: Resources, night: str, policy: Any, version: str) -> list[float]:
    """Engine against policy on the tokens of evaluation episodes; nothing where none were played."""
    with r.db.connect() as conn:
        ids = trajectories.ids_of_night(conn, r.settings.agent, night, "evaluation")
        found = trajectories.get(conn, r.files, ids)
    ours = [item for item in found if item.policy == version][:4]
    return [gap for item in ours for gap in _turn_gaps(policy, item)]


def _sampled_gaps(
    r: Resources, rows: Sequence[dict[str, Any]], policy: Any, version: str
) -> list[float]:
    """Engine against policy on tokens that the engine samples after the beginnings of the probe sequences."""
    engine = policies.actor_of(r, policy, version).engine
    sampling = Sampling(max_tokens=SAMPLED_TOKENS)
    longest = r.settings.model.max_context - SAMPLED_TOKENS
    gaps: list[float] = []
    for row in rows:
        prompt = row["ids"][: min(longest, max(1, len(row["ids"]) // 2))]
        drawn = asyncio.run(engine.sample(prompt, sampling))
        said = policy.probe_logprobs((*prompt, *drawn.completion_ids))
        ours = said[-len(drawn.completion_ids) :]
        gaps += [abs(a - b) for a, b in zip(ours, drawn.logprobs, strict=True)]
    return gaps


def _turn_gaps(policy: Any, trajectory: Trajectory) -> Iterable[float]:
    for turn in trajectory.turns:
        if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
            continue
        said = policy.probe_logprobs((*turn.prompt_ids, *turn.completion_ids))
        ours = said[-len(turn.completion_ids) :]
        yield from (abs(a - b) for a, b in zip(ours, turn.logprobs, strict=True))


def is_disjoint(
    r: Resources, night: str, trained: dict[str, Any], task_ids: Sequence[str]
) -> bool | None:
    """Whether training and evaluation share nothing; None of a training that did not say what it practised."""
    if "practised" not in trained:
        return None
    with r.db.connect() as conn:
        examples = bundles.get(conn, trained["bundle"]).examples
        made = tasks.get(conn, trained["practised"])
        known = tasks.get(conn, list(task_ids)) if r.settings.environment else []
    seen = [said_by_user(example.messages) for example in examples]
    seen += [task.instruction for task in made]
    if r.settings.environment is None:
        held = [said_by_user(item.messages) for item in held_out_conversations(r, night)]
    else:
        held = [task.instruction for task in known]
    return not {task.id for task in made} & set(task_ids) and not overlaps(held, seen)

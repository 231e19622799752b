"""A believable fortnight of a help desk, written through the store as nights write it.

Fourteen nights of conversations, failure cases with people's decisions, modes, bundles that obey the decisions, lessons,
reports with the gate's answer, versions in the registry. One night failed, one trained nothing. The same seed gives
the same rows.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from components.curation.rules import Rules
from components.curation.strategy_zero import strategy_zero
from components.records import (
    Bundle,
    CurationStrategy,
    Dropped,
    Example,
    FailureCase,
    FailureMode,
    Feedback,
    MemoryEntry,
    ModeStatus,
    RolloutRequest,
    Trajectory,
)
from components.serial import digest
from store import (
    bundles,
    cases,
    memory,
    modes,
    nights,
    promotions,
    reviews,
    strategies,
    trajectories,
)
from store.db import Conn, Database
from store.files import FileStore
from store.registry import Registry
from tests.ui.desk_logs import AGENT, KINDS, Kind, case_of, conversation, lineage
from tests.ui.seed_figures import Outcome, evaluate, summary_of

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
FAILED_NIGHT, IDLE_NIGHT = 5, 9
"""Numbers of the night that failed and of the one that had nothing to train on."""
WINDOW = 3
REVIEWERS = ("ann", "bert")
LESSONS = (
    ("My order arrived broken, I want my money back.", "get_order(order), then refund_order(order), then reply naming order [if status is delivered]"),
    ("Please cancel <order>.", "get_order(order), then cancel_order(order), then reply naming order [if status is packed]"),
    ("Send <order> to another address.", "get_order(order), then change_address(order, street), then reply naming order and street"),
    ("Where is my order <order>?", "get_order(order), then track_order(order), then reply naming order"),
    ("My parcel came late.", "get_order(order), then send_voucher(order), then reply naming order"),
)  # fmt: skip


@dataclass
class Desk:
    """What is filled, and what earlier nights left."""

    conn: Conn
    files: FileStore
    registry: Registry | None
    folder: Path
    """Where checkpoints of registered versions lie."""
    per_night: int
    rng: Random = field(default_factory=lambda: Random(7))
    seen: dict[str, tuple[Trajectory, FailureCase | None]] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    strategy: CurationStrategy = field(
        default_factory=lambda: replace(strategy_zero(), status="accepted")
    )
    champion: str = "1"


def fill(
    db: Database,
    files: FileStore,
    registry: Registry | None,
    folder: Path,
    num_nights: int = 14,
    per_night: int = 32,
) -> None:
    """Write everything; `registry` None leaves the registry alone."""
    with db.connect() as conn:
        desk = Desk(conn, files, registry, folder, per_night)
        if registry is not None:
            _register(desk, "base", "")
            registry.promote(AGENT, "1", "ann", "the model we start from", FIRST)
        for number in range(num_nights):
            _night(desk, number, is_last=number == num_nights - 1)


def night_id(number: int) -> str:
    return (FIRST + timedelta(days=number)).date().isoformat()


def _night(desk: Desk, number: int, is_last: bool) -> None:
    night = night_id(number)
    begun = FIRST + timedelta(days=number, hours=22)
    if number:
        _review(desk, night_id(number - 1), begun - timedelta(hours=9), skip_some=not is_last)
    row = nights.Night(night, AGENT, "running", begun, desk.champion)
    nights.put(desk.conn, row)
    _serve(desk, number, night)
    found = _mine(desk, night)
    if number == FAILED_NIGHT:
        made = summary_of(Outcome(night, len(found), failed="train"), _modes_of(desk, night))
        nights.put(
            desk.conn,
            replace(row, status="failed", summary=made, finished_at=begun + timedelta(minutes=4)),
        )
        return
    bundle = _curate(desk, number, night)
    revision, lessons = _remember(desk, number, night, begun)
    outcome = Outcome(
        night, len(found), bundle=bundle, revision=revision, lessons=lessons, number=number
    )
    version = None
    if number != IDLE_NIGHT:
        outcome = replace(outcome, decided=evaluate(desk.conn, outcome))
        version = _offer(desk, outcome, begun)
    made = summary_of(outcome, _modes_of(desk, night))
    finished = begun + timedelta(minutes=19 + number % 4)
    nights.put(
        desk.conn,
        replace(row, status="done", challenger_version=version, summary=made, finished_at=finished),
    )
    if version and outcome.decided and outcome.decided.decision.accepted and not is_last:
        _promote(desk, version, finished + timedelta(hours=10))


def _serve(desk: Desk, number: int, night: str) -> None:
    """A day's customers; failures become rarer and change their kinds over the fortnight."""
    made: list[Trajectory] = []
    for index in range(desk.per_night):
        kind = KINDS[(index + number) % len(KINDS)]
        wrong = desk.rng.random() < 0.66 - 0.03 * number
        split = "test" if desk.rng.random() < 0.12 else "train"
        trajectory = replace(
            conversation(index, night, kind, wrong, desk.rng),
            split=split,
            policy=f"SmolLM2-135M-Instruct/v{desk.champion}",
        )
        made.append(trajectory)
        case = case_of(trajectory, kind, _mode_id(kind)) if wrong else None
        desk.seen[trajectory.id] = (trajectory, case)
    trajectories.put(desk.conn, desk.files, made, night, "production")
    trajectories.put(desk.conn, desk.files, _rollouts(made, night), night, "rollout")


def _rollouts(made: Iterable[Trajectory], night: str) -> list[Trajectory]:
    """Practice episodes: the policy alone, judged by the environment."""
    alone: list[Trajectory] = []
    for item in [each for each in made if each.split == "train"][:8]:
        turns = tuple(turn for turn in item.turns if turn.executor == "policy")
        reward = Feedback("environment", "outcome", float(item.outcome or 0), name="verified")
        alone.append(
            replace(
                item,
                id=f"r-{item.id[2:]}",
                turns=turns,
                feedback=(reward,),
                group_id=f"group-{item.task_id}",
                conversation_id=None,
                outcome_source="environment",
                stop_reason="done",
            )
        )
    return alone


def _mode_id(kind: Kind) -> str:
    return f"m-{digest(kind.signature)[:10]}"


def _mine(desk: Desk, night: str) -> list[FailureCase]:
    found = [case for t, case in desk.seen.values() if case and t.conversation_id[5:15] == night]
    counts = Counter(case.mode_id for case in found)
    status: dict[bool, ModeStatus] = {True: "new", False: "recurring"}
    for kind in KINDS:
        if counts[_mode_id(kind)]:
            desk.counts.setdefault(_mode_id(kind), {})[night] = counts[_mode_id(kind)]
    known: list[FailureMode] = []
    for kind in KINDS:
        own = desk.counts.get(_mode_id(kind), {})
        last = list(own.values())[-2:]
        grew = len(last) == 2 and last[1] > last[0] + 1
        stage: ModeStatus = "growing" if grew else status[len(own) < 2]
        if own and night not in own:
            stage = "mitigated"
        known.append(
            FailureMode(
                _mode_id(kind), kind.mode, kind.summary, kind.signature, stage, own, lineage("mining/modes")
            )
        )  # fmt: skip
    modes.put(desk.conn, [mode for mode in known if mode.counts], AGENT)
    cases.put(desk.conn, found, AGENT, night)
    return found


def _modes_of(desk: Desk, night: str) -> list[FailureMode]:
    return [mode for mode in modes.of_agent(desk.conn, AGENT) if mode.counts.get(night)]


def _review(desk: Desk, night: str, at: datetime, skip_some: bool) -> None:
    """The morning after: people decide on most cases of the night before; some of the last stay open."""
    waiting = cases.of_night(desk.conn, AGENT, night)
    for place, stored in enumerate(waiting if skip_some else waiting[:6]):
        if skip_some and place % 5 == 4:
            continue
        is_bad = stored.case.fault == "environment" or desk.rng.random() < 0.18
        change = reviews.Change(
            actor=REVIEWERS[place % 2],
            verdict="dismissed" if is_bad else "confirmed",
            reason="not the agent's fault" if is_bad else "",
        )
        reviews.decide(
            desk.conn, stored.case.id, stored.version, change, at + timedelta(seconds=40 * place)
        )
        trajectory, _ = desk.seen[stored.case.trajectory_id]
        (known,) = cases.get(desk.conn, [stored.case.id])
        desk.seen[trajectory.id] = (trajectory, known.case)


def _curate(desk: Desk, number: int, night: str) -> Bundle:
    rewriter = Rules(min_cases=2)
    known = [case for _, case in desk.seen.values() if case]
    child = rewriter.rewrite(desk.strategy, known) if number % 3 == 1 else None
    strategies.put(desk.conn, replace(desk.strategy, scores=_scores(number - 0.5)), AGENT, night)
    if child is not None:
        accepted = number % 2 == 1
        child = replace(
            child,
            status="accepted" if accepted else "rejected",
            scores=_scores(number + (2 if accepted else -3)),
        )
        strategies.put(desk.conn, child, AGENT, night)
        desk.strategy = child if accepted else desk.strategy
    bundle = _bundle(desk, number, night)
    bundles.put(desk.conn, bundle, AGENT, night)
    return bundle


def _scores(quality: float) -> dict[str, float]:
    success = 0.31 + 0.012 * quality
    return {"success": success, "turns": 240.0 - 4 * quality, "worth": success - 0.02}


def _bundle(desk: Desk, number: int, night: str) -> Bundle:
    window = {night_id(past) for past in range(max(0, number - WINDOW), number + 1)}
    examples: list[Example] = []
    dropped: list[Dropped] = []
    taught: list[str] = []
    for trajectory, case in desk.seen.values():
        if trajectory.split != "train" or trajectory.conversation_id[5:15] not in window:
            continue
        reason = _why_not(trajectory, case)
        if reason:
            dropped.append(Dropped(trajectory.id, reason))
            continue
        examples.append(_example(trajectory, case))
        if case is not None and len(taught) < 6:
            taught.append(trajectory.id)
    return Bundle(
        digest([night, desk.strategy.id]),
        desk.strategy.id,
        tuple(examples),
        (RolloutRequest(("refund_order", "get_order"), 1.0), RolloutRequest(("track_order",), 0.5)),
        tuple(taught),
        tuple(dropped),
        lineage("curation/apply"),
    )


def _why_not(trajectory: Trajectory, case: FailureCase | None) -> str | None:
    if case is not None and case.review is not None and case.review.verdict == "dismissed":
        return "its failure case was dismissed in review"
    place = int(trajectory.id[2:6], 16)
    if place % 9 == 0:
        return "double of a kept conversation"
    if case is not None and place % 13 == 0:
        return "more than 64 examples of its failure mode"
    return None


def _example(trajectory: Trajectory, case: FailureCase | None) -> Example:
    person = [turn for turn in trajectory.turns if turn.executor == "human"]
    turns = person or list(trajectory.turns)
    messages = tuple(message for turn in turns for message in (*turn.observation, turn.action))
    targets = tuple(at for at, message in enumerate(messages) if message.role == "assistant")
    mode_ids = (case.mode_id,) if case is not None and case.mode_id else ()
    return Example(
        digest([trajectory.id, targets]), "sft", messages, targets, trajectory.id, mode_ids=mode_ids
    )


def _remember(desk: Desk, number: int, night: str, now: datetime) -> tuple[int, tuple[str, ...]]:
    head = memory.head(desk.conn, AGENT)
    place, version = number % len(LESSONS), 1 + number // len(LESSONS)
    if number % 4 == 3:
        return head, ()
    cue, content = LESSONS[place]
    if version > 1:
        content += f"\nOr: get_order(order), then escalate(order), then reply naming order [if status is {('shipped', 'lost')[version % 2]}]"
    corrected = [t.id for t, case in desk.seen.values() if case]
    entry = MemoryEntry(
        id=f"lesson-{digest(cue)[:8]}",
        version=version,
        kind="lesson",
        cue=cue,
        content=content,
        provenance=tuple(corrected[-4:]),
        scope=AGENT,
        lineage=lineage("memory/lessons", tuple(corrected[-4:])),
    )
    axis = tuple(1.0 if at == place else 0.0 for at in range(384))
    change = memory.Change([entry], [axis], reason=f"night {night}")
    revision = memory.commit(desk.conn, AGENT, change, f"remember {night}", head, now)
    for item, case in list(desk.seen.values())[-12:]:
        memory.note_uses(desk.conn, AGENT, [(item.id, entry.id, entry.version, case is None)])
    return revision, (content,)


def _offer(desk: Desk, outcome: Outcome, begun: datetime) -> str | None:
    assert outcome.decided is not None
    if desk.registry is None:
        return None
    accepted = outcome.decided.decision.accepted
    tags = {
        "night": outcome.night,
        "parent_version": desk.champion,
        "report": outcome.decided.report.id,
        "gate": "accepted" if accepted else "refused",
    }
    version = _register(desk, outcome.night, digest(outcome.night), tags)
    if accepted:
        desk.registry.offer(AGENT, version)
    return version


def _register(desk: Desk, name: str, adapter: str, tags: dict[str, str] | None = None) -> str:
    assert desk.registry is not None
    folder = desk.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter.json").write_text(f'{{"adapter": "{adapter}"}}')
    data = (folder / "adapter.json").read_bytes()
    made = hashlib.sha256(data).hexdigest()
    (folder / "COMPLETE").write_text(f'{{"files": {{"adapter.json": [{len(data)}, "{made}"]}}}}')
    return desk.registry.register(AGENT, folder, {"adapter": adapter, **(tags or {})}, None)


def _promote(desk: Desk, version: str, at: datetime) -> None:
    reason = "better on every kind of request, nothing worse"
    wish = promotions.Wish(AGENT, "promote", desk.champion, version, "ann", reason)
    request = promotions.ask(desk.conn, wish, at)
    if desk.registry is not None:
        desk.registry.promote(AGENT, version, "ann", reason, at)
    promotions.resolve(desk.conn, request, "done", f"version {version} is the champion", at)
    desk.champion = version

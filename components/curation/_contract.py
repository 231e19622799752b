"""What a strategy may answer, and how the host turns it into a bundle.

    {"examples": [{"kind", "trajectory_id", "turns", "targets", "weight", "mode_ids",
                   "rejected_turn" (preference only), "max_observation_chars"}],
     "rl": [{"skills", "weight", "mode_ids", "trajectory_ids"}],
     "memory": [trajectory id],
     "dropped": [{"trajectory_id", "reason"}]}

Examples are references: the host rebuilds every message from the records, so a strategy can leave out and cut, and can
neither invent nor relabel. The turns of an example must be one history that happened: they start where the
conversation starts, and each follows the one before, or stands where a person took over (same observation as the turn
it replaces). Loss falls only on actions named as targets. A target is well formed, and was done by a person or a
teacher, or in a conversation whose outcome is a success. The rejected turn of a preference saw the same observation as
the target. Tool results whose call is gone are left out; `max_observation_chars` shortens tool results only.

An item that breaks a rule is rejected with its number and the reason; its siblings stand. A trajectory without example
and without reason gets "no reason given". An answer of another shape, or more than twice the corpus, is refused whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from components.curation._corpus import tools_of
from components.errors import RecordError, UnsafeStrategy
from components.records import (
    Bundle,
    CurationStrategy,
    Dropped,
    Example,
    FailureCase,
    Lineage,
    Message,
    RolloutRequest,
    ToolCall,
    Trajectory,
    Turn,
)
from components.serial import canonical, digest
from components.tokens import ORPHAN_MARK

MAX_WEIGHT = 8.0

Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False)]
Place = Annotated[int, Field(ge=0)]
ItemT = TypeVar("ItemT", bound=BaseModel)
_STRICT = ConfigDict(extra="forbid", strict=True)


class ExampleReference(BaseModel):
    model_config = _STRICT
    kind: Literal["sft", "preference", "anchor"]
    trajectory_id: str
    turns: list[Place] = Field(min_length=1)
    targets: list[Place] = Field(min_length=1)
    weight: Weight = 1.0
    mode_ids: list[str] = []
    rejected_turn: Place | None = None
    max_observation_chars: Annotated[int, Field(ge=16)] | None = None


class PracticeReference(BaseModel):
    model_config = _STRICT
    skills: list[str] = Field(min_length=1)
    weight: Weight
    mode_ids: list[str] = []
    trajectory_ids: list[str] = Field(min_length=1)


class DropReference(BaseModel):
    model_config = _STRICT
    trajectory_id: str
    reason: Annotated[str, Field(min_length=1, max_length=300)]


class Output(BaseModel):
    model_config = _STRICT
    examples: list[Any] = []
    rl: list[Any] = []
    memory: list[Any] = []
    dropped: list[Any] = []


class Curated(NamedTuple):
    """A bundle, and what the host refused to put into it."""

    bundle: Bundle
    rejected: tuple[str, ...]


@dataclass(slots=True)
class _Reading:
    """The records a strategy may name, and the reasons collected on the way."""

    trajectories: Mapping[str, Trajectory]
    modes: frozenset[str]
    skills: frozenset[str]
    rejected: list[str] = field(default_factory=list)
    blamed: dict[str, str] = field(default_factory=dict)
    """Trajectory -> why its first rejected item was rejected."""

    def trajectory(self, trajectory_id: str) -> Trajectory:
        found = self.trajectories.get(trajectory_id)
        if found is None:
            raise RecordError(f"names trajectory {trajectory_id!r}, which is not in the corpus")
        return found

    def mode_ids(self, named: Iterable[str]) -> tuple[str, ...]:
        unknown = sorted(set(named) - self.modes)
        if unknown:
            raise RecordError(f"names failure mode {unknown[0]!r}, which no case of the corpus has")
        return tuple(named)


def bundle_from(
    value: Any,
    strategy: CurationStrategy,
    trajectories: Sequence[Trajectory],
    cases: Sequence[FailureCase],
    lineage: Lineage,
) -> Curated:
    """The bundle that a strategy's answer describes.

    Raises:
        UnsafeStrategy: the answer has another shape, or is larger than twice the corpus.
    """
    try:
        output = Output.model_validate(value)
    except ValidationError as error:
        raise UnsafeStrategy(
            f"strategy {strategy.id[:12]!r} broke its contract: {_first(error)}"
        ) from error
    reading = _Reading(
        {item.id: item for item in trajectories},
        frozenset(case.mode_id for case in cases if case.mode_id),
        frozenset(name for item in trajectories for name in tools_of(item)),
    )
    examples = tuple(_examples(output.examples, reading))
    _check_size(examples, trajectories, strategy)
    requests, practised = _requests(output.rl, reading)
    memory = tuple(dict.fromkeys(_memory(output.memory, reading)))
    used = {example.trajectory_id for example in examples}
    dropped = tuple(_dropped(output.dropped, used, reading))
    parents = sorted(used | practised | set(memory))
    bundle = Bundle(
        "",
        strategy.id,
        examples,
        requests,
        memory,
        dropped,
        replace(lineage, parents=tuple(parents)),
    )
    return Curated(replace(bundle, id=digest(canonical(bundle))), tuple(reading.rejected))


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'answer'}: {first['msg']}"


def _items(
    kind: str, values: list[Any], model: type[ItemT], reading: _Reading
) -> Iterable[tuple[str, ItemT]]:
    """Well-shaped items with the name they are rejected under."""
    for number, value in enumerate(values):
        try:
            yield f"{kind} {number}", TypeAdapter(model).validate_python(value)
        except ValidationError as error:
            reading.rejected.append(f"{kind} {number}: {_first(error)}")


def _examples(values: list[Any], reading: _Reading) -> Iterable[Example]:
    seen: set[str] = set()
    for name, reference in _items("example", values, ExampleReference, reading):
        try:
            example = _example(reference, reading)
            if example.id in seen:
                raise RecordError("is the same as an earlier one")
        except RecordError as error:
            reading.rejected.append(f"{name} of trajectory {reference.trajectory_id!r}: {error}")
            reading.blamed.setdefault(reference.trajectory_id, str(error))
            continue
        seen.add(example.id)
        yield example


def _example(reference: ExampleReference, reading: _Reading) -> Example:
    trajectory = reading.trajectory(reference.trajectory_id)
    turns = trajectory.turns
    _check_history(reference, turns)
    for place in reference.targets:
        _check_target(place, reference, trajectory)
    messages, targets = _rebuilt(reference, turns)
    example = Example(
        id="",
        kind=reference.kind,
        messages=messages,
        targets=targets,
        trajectory_id=trajectory.id,
        rejected=_rejected(reference, turns),
        weight=reference.weight,
        mode_ids=reading.mode_ids(reference.mode_ids),
    )
    return replace(example, id=digest(canonical(example)))


def _check_history(reference: ExampleReference, turns: tuple[Turn, ...]) -> None:
    """The named turns are one history that happened."""
    places = reference.turns
    if places != sorted(set(places)) or places[-1] >= len(turns):
        raise RecordError(f"turns {places!r} must rise and stay below {len(turns)}")
    outside = set(reference.targets) - set(places)
    if outside:
        raise RecordError(f"target {min(outside)} is not among its turns {places!r}")
    expected = 0
    for place in places:
        took_over = turns[place].executor in ("human", "teacher")
        if place != expected and not (took_over and _seen(turns[place]) == _seen(turns[expected])):
            raise RecordError(
                f"turn {place} does not follow: expected turn {expected}, or a person's turn that saw the same"
            )
        expected = min(place + 1, len(turns) - 1)


def _check_target(place: int, reference: ExampleReference, trajectory: Trajectory) -> None:
    turn = trajectory.turns[place]
    if turn.executor not in ("human", "teacher") and trajectory.outcome is not True:
        raise RecordError(
            f"target {place} is an action of the {turn.executor} in a conversation with outcome "
            f"{trajectory.outcome!r}; only people, teachers and successes are imitated"
        )
    problem = problem_of(turn)
    if problem:
        raise RecordError(f"target {place} is malformed: {problem}")


def problem_of(turn: Turn) -> str | None:
    """Why an action must not be imitated, or None."""
    if turn.error:
        return turn.error
    for call in turn.action.tool_calls:
        if call.problem:
            return f"call of {call.name!r}: {call.problem}"
    marks = [mark for mark in turn.action.marks if mark.startswith("unparsable")]
    if marks:
        return marks[0]
    return None if turn.action.text.strip() or turn.action.tool_calls else "empty action"


def _rebuilt(
    reference: ExampleReference, turns: tuple[Turn, ...]
) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """The messages of an example, byte for byte, and the positions of its targets."""
    messages: list[Message] = []
    targets: list[int] = []
    open_calls: list[ToolCall] = []
    for place in reference.turns:
        for message in turns[place].observation:
            if message.role == "tool" and not _closes(message, open_calls):
                continue
            messages.append(_cut(_unmarked(message), reference.max_observation_chars))
            open_calls.extend(message.tool_calls)
        if place in reference.targets:
            targets.append(len(messages))
        messages.append(turns[place].action)
        open_calls.extend(turns[place].action.tool_calls)
    return tuple(messages), tuple(targets)


def _closes(result: Message, open_calls: list[ToolCall]) -> bool:
    """Whether a tool result answers an open call, which it then closes.

    Judged inside the example and not by the marks of ingestion: a person's turns are read apart from the history that
    they continue, so a result whose call lies in that history may carry the mark of an orphan.
    """
    for call in reversed(open_calls):
        if (
            call.id == result.tool_call_id
            if result.tool_call_id
            else result.name in (None, call.name)
        ):
            open_calls.remove(call)
            return True
    return False


def _unmarked(message: Message) -> Message:
    """The message without a mark that does not hold inside the example."""
    if ORPHAN_MARK not in message.marks:
        return message
    return replace(message, marks=tuple(mark for mark in message.marks if mark != ORPHAN_MARK))


def _cut(message: Message, max_chars: int | None) -> Message:
    if max_chars is None or message.role != "tool" or not isinstance(message.content, str):
        return message
    return replace(message, content=message.content[:max_chars])


def _seen(turn: Turn) -> list[tuple[Any, ...]]:
    """What was seen at a turn, without the marks that reading left on it."""
    shown = turn.observation
    return [
        (item.role, item.content, item.tool_calls, item.tool_call_id, item.name) for item in shown
    ]


def _rejected(reference: ExampleReference, turns: tuple[Turn, ...]) -> Message | None:
    if reference.kind != "preference":
        if reference.rejected_turn is not None:
            raise RecordError(
                f"has a rejected turn, which an example of kind {reference.kind!r} has not"
            )
        return None
    place, wanted = reference.rejected_turn, reference.targets[-1]
    if place is None or place >= len(turns):
        raise RecordError(f"needs a rejected turn below {len(turns)}, got {place!r}")
    if _seen(turns[place]) != _seen(turns[wanted]):
        raise RecordError(f"rejected turn {place} and target {wanted} did not see the same")
    if turns[place].action == turns[wanted].action:
        raise RecordError(f"rejected turn {place} and target {wanted} did the same")
    return turns[place].action


def _check_size(
    examples: Sequence[Example], trajectories: Sequence[Trajectory], strategy: CurationStrategy
) -> None:
    kept = sum(len(example.targets) for example in examples)
    most = 2 * sum(len(item.turns) for item in trajectories)
    if kept > most:
        raise UnsafeStrategy(
            f"strategy {strategy.id[:12]!r} emits {kept} target turns, more than twice the corpus ({most})"
        )


def _requests(values: list[Any], reading: _Reading) -> tuple[tuple[RolloutRequest, ...], set[str]]:
    requests: list[RolloutRequest] = []
    named: set[str] = set()
    for name, reference in _items("rl request", values, PracticeReference, reading):
        try:
            unknown = sorted(set(reference.skills) - reading.skills)
            if unknown:
                raise RecordError(
                    f"wants skill {unknown[0]!r}, which no trajectory of the corpus has"
                )
            sources = {reading.trajectory(item).id for item in reference.trajectory_ids}
            modes = reading.mode_ids(reference.mode_ids)
        except RecordError as error:
            reading.rejected.append(f"{name}: {error}")
            continue
        named |= sources
        requests.append(RolloutRequest(tuple(reference.skills), reference.weight, modes))
    return tuple(requests), named


def _memory(values: list[Any], reading: _Reading) -> Iterable[str]:
    for number, value in enumerate(values):
        if isinstance(value, str) and value in reading.trajectories:
            yield value
        else:
            reading.rejected.append(
                f"memory {number}: names trajectory {value!r}, which is not in the corpus"
            )


def _dropped(values: list[Any], used: set[str], reading: _Reading) -> Iterable[Dropped]:
    """One reason for every trajectory without an example: its own, the host's, or none."""
    reasons: dict[str, str] = {}
    for name, reference in _items("dropped", values, DropReference, reading):
        if reference.trajectory_id not in reading.trajectories:
            reading.rejected.append(
                f"{name}: names trajectory {reference.trajectory_id!r}, which is not in the corpus"
            )
        reasons.setdefault(reference.trajectory_id, reference.reason)
    for trajectory_id in reading.trajectories:
        if trajectory_id not in used:
            reason = reading.blamed.get(trajectory_id) or reasons.get(trajectory_id)
            yield Dropped(trajectory_id, reason or "no reason given")

"""The nouns: what flows through a night.

    Trajectory -> FailureCase -> FailureMode -> Task, Bundle, MemoryEntry -> Group, Sample -> Report, Decision

Records are frozen and hold plain data; change one with `dataclasses.replace`. Ids are strings, times are aware UTC,
`None` means "never assigned" and `0.0` means zero. Raw input is kept raw: a tool call's arguments are the JSON text as
emitted and parsing is a view. Shapes: _G trajectories of one task, _T tokens of one sample.
"""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

Role = Literal["system", "developer", "user", "assistant", "tool"]
Executor = Literal["policy", "teacher", "human", "replay"]
ObservationSource = Literal["live", "replayed", "cached", "simulated"]
LineageEngine = Literal["model", "rule", "template", "human"]
FeedbackSource = Literal["environment", "verifier", "judge", "user", "teacher"]
FeedbackKind = Literal[
    "outcome", "rating", "edit", "accept", "reject", "criterion", "violation", "hint"
]
Fault = Literal["model", "task", "environment", "verifier", "infrastructure", "unclear"]
ModeStatus = Literal["new", "growing", "recurring", "mitigated", "fixed", "regressed"]
StrategyStatus = Literal["candidate", "scored", "accepted", "rejected", "quarantined"]
MemoryKind = Literal["fact", "note", "lesson", "workflow", "skill", "block", "protocol"]
ReviewVerdict = Literal["confirmed", "dismissed"]
Split = Literal["train", "dev", "test"]


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a derived record comes from."""

    parents: tuple[str, ...]
    plugin: str
    """Kind and name, for example `mining/rules`."""
    plugin_version: str
    engine: LineageEngine
    config_digest: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SourceRef:
    """The bytes a record was read from."""

    format: str
    uri: str
    start: int | None = None
    """Byte offset of the first byte, or None when the input has no offsets."""
    end: int | None = None
    """Byte offset after the last byte."""
    line: int | None = None
    """Line number, counted from 1."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """The JSON text as emitted, byte for byte."""

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The arguments as an object, or None when the text is not exactly one JSON object."""
        try:
            value = json.loads(self.arguments)
        except ValueError:
            return None
        return cast("dict[str, Any]", value) if isinstance(value, dict) else None

    @property
    def problem(self) -> str | None:
        """Why `parsed` is None, in words, or None when the call is well formed."""
        if not self.arguments.strip():
            return "empty arguments"
        try:
            value = json.loads(self.arguments)
        except ValueError as error:
            return f"invalid arguments: {error}"
        kind = type(value).__name__
        return (
            None
            if isinstance(value, dict)
            else f"invalid arguments: expected an object, got {kind}"
        )


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str | tuple[dict[str, Any], ...] | None = None
    """Text, or typed parts as the provider sent them."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    marks: tuple[str, ...] = ()
    """What ingestion noticed: `altered`, `orphan tool result`, `skew`, ..."""

    @property
    def text(self) -> str:
        """The readable text: parts joined, null as nothing."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.get("text") or "" for part in self.content)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one model call; None means the provider did not say."""

    input_tokens: int | None = None
    """All prompt tokens, cached ones included."""
    cached_tokens: int | None = None
    """The part of `input_tokens` read from the provider's cache."""
    output_tokens: int | None = None
    cache_written_tokens: int | None = None
    """The part of `input_tokens` written to the provider's cache."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of one turn's completion tokens, half-open."""

    kind: str
    """`reasoning`, `tool_call`, `search_query`, `sql`, `plan`, `answer`, ..."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision: what the agent saw since its last action, and what it did."""

    index: int
    observation: tuple[Message, ...]
    action: Message
    executor: Executor = "policy"
    observation_source: ObservationSource = "live"
    fidelity: float = 1.0
    """How true the observation is to the live environment, in [0, 1]."""
    state_digest: str | None = None
    segments: tuple[Segment, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    """As the engine said it: `stop`, `length`, `tool_calls`, ..."""
    latency_s: float | None = None
    error: str | None = None
    env_facts: dict[str, Any] | None = None
    """What the environment reports about this step beside the observation."""
    prompt_ids: tuple[int, ...] | None = None
    """The exact prompt of this turn; set only when sampled by us."""
    completion_ids: tuple[int, ...] | None = None
    """The exact sampled tokens, the end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...] | None = None
    """Behaviour-policy log-probability of each completion token, at the sampling temperature."""
    policy_version: str | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """Any judgement of a trajectory or of one of its turns."""

    source: FeedbackSource
    kind: FeedbackKind
    score: float | None = None
    """In [0, 1] unless `name` says otherwise; None means abstained."""
    turn: int | None = None
    text: str | None = None
    before: str | None = None
    after: str | None = None
    name: str | None = None
    actor: str | None = None
    occurred_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One conversation or episode of an agent, whole."""

    id: str
    agent: str
    """The workload it belongs to."""
    turns: tuple[Turn, ...]
    task_id: str | None = None
    group_id: str | None = None
    conversation_id: str | None = None
    feedback: tuple[Feedback, ...] = ()
    outcome: bool | None = None
    """True, False, or None when nobody said."""
    outcome_source: FeedbackSource | None = None
    stop_reason: str | None = None
    """Why it ended: `done`, `length`, `max_turns`, `takeover`, `error: ...`."""
    policy: str | None = None
    """Model id and version."""
    harness_version: str | None = None
    memory_revision: str | None = None
    source: SourceRef | None = None
    split: Split | None = None
    started_at: datetime | None = None
    tools: tuple[dict[str, Any], ...] = ()
    """Tool definitions offered to the agent, OpenAI function form."""
    tail: tuple[Message, ...] = ()
    """Messages after the last action: a tool result or a farewell nobody answered."""
    marks: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation in order."""
        flat: list[Message] = []
        for turn in self.turns:
            flat.extend((*turn.observation, turn.action))
        return (*flat, *self.tail)


@dataclass(frozen=True, slots=True)
class Evidence:
    turn: int | None
    quote: str


@dataclass(frozen=True, slots=True)
class Review:
    """What a person decided about a failure case."""

    verdict: ReviewVerdict
    actor: str
    decided_at: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FailureCase:
    id: str
    trajectory_id: str
    turn: int | None
    """The first wrong turn, or None when no turn is to blame."""
    fault: Fault
    signature: str
    """`kind|tool|detail`, for example `wrong_tool|refund_order|issued cancel_order`."""
    summary: str
    evidence: tuple[Evidence, ...]
    lineage: Lineage
    mode_id: str | None = None
    review: Review | None = None

    @property
    def kind(self) -> str:
        """What went wrong, the first field of the signature."""
        return self.signature.split("|")[0]

    @property
    def tool(self) -> str | None:
        """The tool that was wanted or broken, the second field of the signature."""
        fields = self.signature.split("|")
        return fields[1] or None if len(fields) > 1 else None


@dataclass(frozen=True, slots=True)
class FailureMode:
    """A named family of failure cases, followed across nights."""

    id: str
    name: str
    description: str
    signature: str
    """The most common signature of its cases."""
    status: ModeStatus
    counts: dict[str, int]
    """Cases per night (ISO date)."""
    lineage: Lineage
    embedding: tuple[float, ...] | None = None

    @property
    def tool(self) -> str | None:
        """The tool that was wanted or broken, the second field of the signature."""
        fields = self.signature.split("|")
        return fields[1] or None if len(fields) > 1 else None


@dataclass(frozen=True, slots=True)
class Task:
    """Something to solve in an environment. The reference solution is not part of it."""

    id: str
    instruction: str
    """The customer's or user's opening words."""
    environment: str
    """Name of the environment plug-in."""
    params: dict[str, Any]
    """What the environment needs to set the scene; JSON only."""
    tools: tuple[dict[str, Any], ...] = ()
    verifier: str = "environment"
    required_skills: tuple[str, ...] = ()
    """Tools that the reference solution uses, and the task's kind."""
    modes: tuple[str, ...] = ()
    """Ids of the failure modes it stresses."""
    split: Split = "train"
    solver_stats: dict[str, float] | None = None
    lineage: Lineage | None = None

    @property
    def skill_set(self) -> str:
        """All required skills as one name, `{a, b}`, which is no skill's own."""
        return f"{{{', '.join(sorted(set(self.required_skills)))}}}"


@dataclass(frozen=True, slots=True)
class ReferenceSolution:
    """The executed solution of a task. No policy-facing code may read it."""

    task_id: str
    actions: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    subject: str
    """Id of the task or trajectory judged."""
    verifier: str
    version: str
    success: bool | None
    """None = abstained."""
    score: float | None
    criteria: dict[str, float]
    precision_estimate: float | None = None


@dataclass(frozen=True, slots=True)
class CurationStrategy:
    """A program that turns a corpus into a bundle; its id is the digest of its source."""

    id: str
    source: str
    stage: Literal["initial", "effectiveness", "efficiency"]
    lineage: Lineage
    parent_id: str | None = None
    motivating_cases: tuple[str, ...] = ()
    scores: dict[str, float] | None = None
    status: StrategyStatus = "candidate"


@dataclass(frozen=True, slots=True)
class Example:
    """One imitation or preference target: messages before, messages wanted."""

    id: str
    kind: Literal["sft", "preference", "anchor"]
    messages: tuple[Message, ...]
    """The whole conversation; `targets` says what is learnt."""
    targets: tuple[int, ...]
    """Indices of the assistant messages whose tokens carry loss."""
    trajectory_id: str
    rejected: Message | None = None
    """For a preference: the action that the last target is preferred to."""
    weight: float = 1.0
    mode_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A wish for on-policy practice: skills to exercise, and how much they matter."""

    skills: tuple[str, ...]
    weight: float
    mode_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """A trajectory that a strategy left out, and why."""

    trajectory_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """All that a strategy emits. Every item names the trajectories it came from."""

    id: str
    strategy_id: str
    examples: tuple[Example, ...]
    rl: tuple[RolloutRequest, ...]
    memory_trajectories: tuple[str, ...]
    """Trajectories that memory should be built from."""
    dropped: tuple[Dropped, ...]
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    id: str
    version: int
    kind: MemoryKind
    cue: str
    """When it applies, in the words of a user."""
    content: str
    provenance: tuple[str, ...]
    """Trajectory or case ids."""
    scope: str
    """The agent it belongs to."""
    lineage: Lineage
    uses: int = 0
    successes: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories sampled for one task, with their rewards by channel."""

    task: Task
    trajectories_G: tuple[Trajectory, ...]
    rewards: dict[str, tuple[float | None, ...]]
    """Channel -> one reward per trajectory; None = not scored."""

    @property
    def returns_G(self) -> tuple[float | None, ...]:
        """Sum of the scored channels per trajectory, None where no channel scored it."""
        columns = zip(*self.rewards.values(), strict=True)
        rows = [[value for value in column if value is not None] for column in columns]
        return tuple(sum(row) if row else None for row in rows)


@dataclass(frozen=True, slots=True)
class Sample:
    """Token streams of one trajectory (or one segment of it) for the learner; all of length T.

    A stream that no method wrote is None and costs nothing.
    """

    trajectory_id: str
    input_ids_T: tuple[int, ...]
    action_mask_T: tuple[bool, ...]
    """True exactly on tokens the policy (or the demonstrator) produced, end-of-turn included."""
    logprobs_T: tuple[float, ...] | None = None
    """Behaviour log-probabilities, 0.0 outside the mask; None when unknown (imitation, re-tokenised)."""
    turn_index_T: tuple[int, ...] | None = None
    """Turn of each token, -1 outside the mask."""
    advantages_T: tuple[float, ...] | None = None
    ce_weights_T: tuple[float, ...] | None = None
    kl_weights_T: tuple[float, ...] | None = None
    teacher_logprobs_T: tuple[float, ...] | None = None
    teacher_topk: tuple[tuple[tuple[int, float], ...], ...] | None = None
    """Per token: the teacher's most likely ids with their log-probabilities."""


@dataclass(frozen=True, slots=True)
class PairedStats:
    """Challenger minus champion on the same cases and seeds."""

    num_tasks: int
    num_seeds: int
    difference: float
    low: float
    """Lower end of the 95% interval."""
    high: float
    p_value: float
    wins: int
    losses: int


@dataclass(frozen=True, slots=True)
class Report:
    """Scores of two policies on the same cases."""

    id: str
    champion: str
    challenger: str
    scores: dict[str, dict[str, tuple[float | None, ...]]]
    """Arm -> task id -> one score per seed."""
    slices: dict[str, tuple[str, ...]]
    """Slice name -> task ids."""
    paired: PairedStats
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Criterion:
    name: str
    passed: bool | None
    """None = could not be judged."""
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The gate's answer."""

    report_id: str
    accepted: bool
    criteria: tuple[Criterion, ...]


@dataclass(frozen=True, slots=True)
class StageLine:
    """How one stage of a night went."""

    name: str
    status: Literal["done", "unchanged", "failed", "skipped"]
    seconds: float
    line: str
    """What it did, or why not, in one sentence."""


@dataclass(frozen=True, slots=True)
class ArmScore:
    """Success of one policy on the evaluation tasks."""

    mean: float
    low: float
    """Lower end of the 95% interval over tasks."""
    high: float
    num_tasks: int
    num_seeds: int


@dataclass(frozen=True, slots=True)
class ModeLine:
    mode_id: str
    name: str
    status: ModeStatus
    count: int
    """Cases this night."""


@dataclass(frozen=True, slots=True)
class NightSummary:
    """The figures of one night, as the report and the overview show them."""

    stages: tuple[StageLine, ...]
    arms: dict[str, ArmScore]
    """`champion`, `challenger`, `sft_only`, `challenger_without_memory`: those that were evaluated."""
    paired: dict[str, PairedStats]
    """`challenger-champion`, `challenger-sft_only`, ..."""
    modes: tuple[ModeLine, ...]
    lessons: tuple[str, ...]
    """Content of memory entries written this night."""
    rates: dict[str, float]
    """`sampled_tokens_per_s`, `trained_tokens_per_s`, `orchestration_share`, ..."""
    counts: dict[str, int]
    """`trajectories`, `cases`, `examples`, `dropped`, `quarantined`, ..."""
    accepted: bool | None = None
    """The gate's answer; None when nothing was offered."""
    criteria: tuple[Criterion, ...] = ()
    strategy_id: str | None = None
    bundle_id: str | None = None
    report_id: str | None = None
    memory_revision: str | None = None
    challenger_digest: str | None = None
    sft_only_digest: str | None = None
    confusion: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """How the champion's rollouts ended -> how the challenger's ended on the same tasks and seeds -> how many."""
    note: str = ""
    """What the profile limits, or why nothing was trained."""

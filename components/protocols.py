"""The verbs: one- and two-method protocols, one per kind of plug-in.

    ingestion   Reader       bytes of a log -> RawRecord -> Trajectory
    mining      Miner        failed trajectories -> FailureCase;  ModeFinder  cases -> FailureMode
    curation    Rewriter     strategy, cases -> new CurationStrategy
    memory      Writer       trajectories -> MemoryEntry
    synthesis   Proposer     modes -> Task
    curriculum  Curriculum   tasks -> next tasks; Group -> admitted?
    environments World       tasks, and an Environment for each; Verifier judges the end
    harnesses   Harness      Task, environment, engine -> Trajectory
    rollout     Engine       prompt ids -> tokens with log-probabilities
    rewards     Reward       trajectories of one task -> one channel
    credit      Credit       Group, Samples -> Samples with streams
    evaluation  Gate         Report -> Decision

A plug-in receives records and models and returns records. It opens no file, reads no environment variable, prints
nothing and knows no database. What is random takes an `rng`, what is timed takes a `now`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, BinaryIO, Literal, Protocol

from components.records import (
    CurationStrategy,
    Decision,
    FailureCase,
    FailureMode,
    Feedback,
    Group,
    MemoryEntry,
    Message,
    ObservationSource,
    ReferenceSolution,
    Report,
    Sample,
    Segment,
    Task,
    Trajectory,
    Verdict,
)

# --- ingestion --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record of a log as it stood there, before anyone interprets it."""

    id: str
    """Digest of format, conversation and content: the same bytes twice are one record."""
    format: str
    conversation_id: str
    """Records with one conversation id become one trajectory."""
    payload: dict[str, Any]
    start: int
    """Byte offset of the record in its file."""
    end: int
    line: int | None = None
    marks: tuple[str, ...] = ()
    meaning: object = field(default=None, compare=False, repr=False)
    """What the reader that framed it already made of the payload, so that `assemble` need not do it again; never stored."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Bytes that are not a record of the format; they go to quarantine."""

    reason: str
    start: int
    end: int
    line: int | None = None
    text: str = ""
    """The bytes as text, shortened."""


@dataclass(frozen=True, slots=True)
class Detection:
    confidence: float
    """In [0, 1]; 0 means "not mine"."""
    why: str


class Reader(Protocol):
    """A log format. `read` frames records, `assemble` makes a trajectory of all records of one conversation."""

    def detect(self, head: bytes, name: str) -> Detection:
        """Judge by content (the first 64 kB) and the file's name."""
        ...

    def read(self, stream: BinaryIO) -> Iterator[RawRecord | Rejected]:
        """Records in file order; a bad one is yielded as `Rejected`, never raised."""
        ...

    def assemble(self, records: Sequence[RawRecord], agent: str) -> Trajectory:
        """The trajectory of one conversation, the same for any order and repetition of its records."""
        ...


# --- mining -----------------------------------------------------------------------------------------------------------


class Miner(Protocol):
    def mine(self, trajectories: Iterable[Trajectory]) -> Iterator[FailureCase]:
        """At most one case per trajectory: its first wrong step, who is at fault, and a signature."""
        ...


Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts -> unit vectors."""


class ModeFinder(Protocol):
    def find(
        self, cases: Sequence[FailureCase], known: Sequence[FailureMode], embed: Embed, night: str
    ) -> tuple[list[FailureCase], list[FailureMode]]:
        """Cases with their mode, and all modes with counts and status as of this night."""
        ...


# --- curation, synthesis, memory, curriculum --------------------------------------------------------------------------


class Rewriter(Protocol):
    def rewrite(
        self, strategy: CurationStrategy, cases: Sequence[FailureCase]
    ) -> CurationStrategy | None:
        """A child strategy aimed at these cases, or None when there is nothing to improve."""
        ...


class Proposer(Protocol):
    def propose(
        self, modes: Sequence[FailureMode], world: "World", num: int, rng: Random
    ) -> list[tuple[Task, ReferenceSolution]]:
        """Training tasks that stress the given modes."""
        ...


class Writer(Protocol):
    def write(
        self, trajectories: Sequence[Trajectory], bank: Sequence[MemoryEntry]
    ) -> list[MemoryEntry]:
        """New entries, and new versions of entries in the bank."""
        ...


class Curriculum(Protocol):
    def select(
        self, tasks: Sequence[Task], num: int, success_rates: dict[str, float], rng: Random
    ) -> list[Task]:
        """The next tasks to practise. `success_rates`: what is known per task id, kind and skill, in [0, 1]."""
        ...

    def can_admit(self, group: Group) -> bool:
        """Whether the group carries a learning signal."""
        ...


# --- environments and harnesses ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepResult:
    observation: tuple[Message, ...]
    """What the agent sees next; empty when done."""
    done: bool
    feedback: tuple[Feedback, ...] = ()
    state_digest: str | None = None
    facts: dict[str, Any] | None = None
    observation_source: ObservationSource = "live"
    fidelity: float = 1.0
    stop_reason: str | None = None


class Environment(Protocol):
    """One episode of one task."""

    @property
    def opening(self) -> tuple[Message, ...]:
        """What the agent sees first, the system message included."""
        ...

    def step(self, action: Message) -> StepResult: ...


class World(Protocol):
    """An environment plug-in: where tasks come from, and how each is opened and judged."""

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """Tool definitions, OpenAI function form."""
        ...

    def tasks(
        self,
        num: int,
        split: Literal["train", "dev", "test"],
        rng: Random,
        skill_weights: dict[str, float] | None = None,
    ) -> list[tuple[Task, ReferenceSolution]]:
        """New solvable tasks with executed solutions; splits never share a task.

        `skill_weights`: how much more often tasks that need a skill are wanted.
        """
        ...

    def open(self, task: Task) -> Environment: ...

    def verify(self, task: Task, trajectory: Trajectory) -> Verdict:
        """Judge a finished trajectory by executing it again; reads no reference solution."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw one completion."""

    max_tokens: int
    temperature: float = 1.0
    """0 means greedy."""
    seed: int = 0
    """Same prompt, weights, seed and batch order: same tokens."""


@dataclass(frozen=True, slots=True)
class Completion:
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token under the distribution it was drawn from."""
    finish_reason: str
    """`stop` or `length`."""
    policy_version: str


class Engine(Protocol):
    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Draw one completion; calls awaited together are batched.

        Raises:
            ModelCallError: the engine failed or the prompt does not fit.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """An assistant message read from sampled text."""

    message: Message
    segments: tuple[Segment, ...]
    problem: str | None
    """Why the text is not a well-formed action, or None."""


class Renderer(Protocol):
    """Messages <-> tokens for one model family, append-only: no sampled token is ever tokenised again."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> tuple[int, ...]:
        """Tokens up to and including the header of the assistant's next message."""
        ...

    def observation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Tokens between a finished assistant message and the next assistant header."""
        ...

    def completion(self, action: Message) -> tuple[int, ...]:
        """Tokens of an assistant message as the policy would emit it, end-of-turn included."""
        ...

    def parse(self, completion_ids: Sequence[int]) -> ParsedAction: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Harness(Protocol):
    """The agent loop."""

    async def run(
        self, task: Task, world: World, engine: Engine, renderer: Renderer, plan: "RolloutPlan"
    ) -> Trajectory:
        """One episode. A failure inside becomes the trajectory's stop reason, never an exception."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What one episode needs beside its task."""

    trajectory_id: str
    sampling: Sampling
    group_id: str | None = None
    memory: str = ""
    """Recalled lessons to put into the prompt; empty for none."""
    memory_revision: str | None = None
    agent: str = "agent"


# --- rewards, credit, evaluation --------------------------------------------------------------------------------------


class Reward(Protocol):
    def score(self, task: Task, trajectories_G: Sequence[Trajectory]) -> tuple[float | None, ...]:
        """One reward per trajectory; None = not scored."""
        ...


CreditStage = Literal["base", "replace", "multiply", "add", "post_scale"]


class Credit(Protocol):
    @property
    def stage(self) -> CreditStage:
        """Where it stands in the order base -> replace -> multiply -> add -> post_scale."""
        ...

    def assign(self, group: Group, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with streams written; zero outside the action mask."""
        ...


class Gate(Protocol):
    def decide(self, report: Report, facts: dict[str, bool | None]) -> Decision:
        """`facts`: proofs gathered elsewhere, by criterion name (for example `delivery`)."""
        ...

"""Messages <-> tokens, and token streams <-> training samples.

Framing is ChatML, which SmolLM2 and Qwen share: `<|im_start|>role\\n text <|im_end|>\\n`. The tokenizer is passed in.
Text between the frames never yields a frame token, whatever a log says, because it is encoded with special tokens split.

Append-only: with `i` the place of an assistant message and no instructions after it,

    prompt(m) == prompt(m[:i]) + completion(m[i]) + observation(m[i + 1:])        token for token

so what the policy sampled is never tokenised again. A completion cut by its length limit carries no end-of-turn token
and none is added.

How calls, results and tool lists are written is the call format, `compact` or `hermes`: `call_formats.py`.

Rendering rules: null content is nothing, list parts are joined, arguments are object text (the emitted text when it is
no object), system and developer messages are merged into one system message at the start, in their order, with the tool
list behind the first of them, so that what changes from task to task comes last and the rest is a shared prefix. Results
whose call is not in the conversation are left out; `orphan_results` says which.
Shapes: _T tokens of one sample.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol

from components.call_formats import CallFormat, CompactCalls, HermesCalls, Span
from components.errors import ConfigError, Misaligned, RecordError
from components.protocols import ParsedAction, Renderer
from components.records import Example, Message, Sample, Segment, ToolCall, Trajectory, Turn
from components.serial import digest

FRAME_START, FRAME_END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
INSTRUCTIONS = ("system", "developer")
ORPHAN_MARK = "orphan tool result"
CALL_FORMATS: dict[str, CallFormat] = {"compact": CompactCalls(), "hermes": HermesCalls()}


class Tokenizer(Protocol):
    """What rendering needs of a tokenizer; Hugging Face tokenizers have it."""

    def encode(
        self, text: str, *, add_special_tokens: bool, split_special_tokens: bool
    ) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def convert_tokens_to_ids(self, tokens: str) -> int: ...


@dataclass(frozen=True)
class ChatRenderer:
    """`protocols.Renderer` for the ChatML family."""

    tokenizer: Tokenizer
    call_format: Literal["compact", "hermes"] = "compact"

    @property
    def _format(self) -> CallFormat:
        return CALL_FORMATS[self.call_format]

    @cached_property
    def _start(self) -> int:
        return self._frame_id(FRAME_START)

    @cached_property
    def _end(self) -> int:
        return self._frame_id(FRAME_END)

    @cached_property
    def _newline(self) -> tuple[int, ...]:
        return self._encode("\n")

    @cached_property
    def _header(self) -> tuple[int, ...]:
        return (self._start, *self._encode("assistant\n"))

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        text_end = self.tokenizer.convert_tokens_to_ids(TEXT_END)
        return frozenset(
            {self._end, text_end} if self._is_token(text_end, TEXT_END) else {self._end}
        )

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> tuple[int, ...]:
        """Tokens up to and including the header of the assistant's next message.

        Raises:
            RecordError: a message has a role that no chat has, or a tool definition has no name.
        """
        _check_roles(messages)
        orphans = set(orphan_results(messages))
        ids: list[int] = []
        system = self._system_text(messages, tools)
        if system:
            ids += self._framed("system", system)
        spoken = [
            message
            for index, message in enumerate(messages)
            if index not in orphans and message.role not in INSTRUCTIONS
        ]
        for is_action, run in groupby(spoken, key=lambda message: message.role == "assistant"):
            if is_action:
                for action in run:
                    ids += (*self._header, *self.completion(action), *self._newline)
            else:
                for block in self._blocks(run):
                    ids += self._framed(*block)
        return (*ids, *self._header)

    def observation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Tokens between a finished assistant message and the next assistant header.

        Raises:
            RecordError: a message is an instruction or an action; neither can be appended as an observation.
        """
        _check_roles(messages)
        for index, message in enumerate(messages):
            if message.role in (*INSTRUCTIONS, "assistant"):
                raise RecordError(
                    f"message {index} of an observation has role {message.role!r}: expected 'user' or 'tool'; "
                    "instructions stand at the start of the prompt"
                )
        kept = [message for message in messages if ORPHAN_MARK not in message.marks]
        ids = list(self._newline)
        for block in self._blocks(kept):
            ids += self._framed(*block)
        return (*ids, *self._header)

    def completion(self, action: Message) -> tuple[int, ...]:
        """Tokens of an assistant message as the policy would emit it, end-of-turn included."""
        calls = [self._format.call_text(call) for call in action.tool_calls]
        return (*self._encode("\n".join([*filter(None, [action.text]), *calls])), self._end)

    def parse(self, completion_ids: Sequence[int]) -> ParsedAction:
        """The action that sampled tokens stand for. Nothing is repaired: a broken call stays as emitted, with the problem."""
        ids = list(completion_ids)
        while ids and ids[-1] in self.stop_ids:
            ids.pop()
        text = self.decode(ids)
        spans = list(self._format.spans(text))
        stem = digest(repr(tuple(completion_ids)))[:8]
        calls = tuple(
            ToolCall(f"call_{stem}_{index}", call.name, call.arguments)
            for index, call in enumerate(span.call for span in spans if span.call)
        )
        content = "\n".join(
            text[span.start : span.end].strip("\n") for span in spans if not span.call
        )
        problem = (
            _problem(spans, calls) if text.strip() else "empty: neither a reply nor a tool call"
        )
        message = Message(
            "assistant", content=(content.strip() or None) if calls else content, tool_calls=calls
        )
        segments = tuple(
            Segment("tool_call" if span.call else "answer", *self._token_span(ids, span))
            for span in spans
        )
        return ParsedAction(message, segments, problem)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def _encode(self, text: str) -> tuple[int, ...]:
        # A lone surrogate is no text that a tokenizer accepts; it becomes U+FFFD, as in the store.
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return tuple(
            self.tokenizer.encode(whole, add_special_tokens=False, split_special_tokens=True)
        )

    def _frame_id(self, token: str) -> int:
        token_id = self.tokenizer.convert_tokens_to_ids(token)
        if not self._is_token(token_id, token):
            raise ConfigError(
                f"the tokenizer has no token {token!r}; chat rendering needs a model of the ChatML family"
            )
        return token_id

    def _is_token(self, token_id: int | None, token: str) -> bool:
        return token_id is not None and self.decode([token_id]) == token

    def _framed(self, role: str, text: str) -> tuple[int, ...]:
        body = self._encode(f"{role}\n{text}")
        return (self._start, *body, self._end, *self._newline)

    def _system_text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> str:
        texts = [message.text for message in messages if message.role in INSTRUCTIONS]
        listing = [self._format.tools_text([_function(tool) for tool in tools])] if tools else []
        return "\n\n".join([*texts[:1], *listing, *texts[1:]])

    def _blocks(self, messages: Iterable[Message]) -> Iterator[tuple[str, str]]:
        for is_result, run in groupby(messages, key=lambda message: message.role == "tool"):
            if is_result:
                yield from self._format.result_blocks([message.text for message in run])
            else:
                yield from ((message.role, message.text) for message in run)

    def _token_span(self, ids: list[int], span: Span) -> tuple[int, int]:
        lengths = range(len(ids) + 1)

        def num_chars(num_tokens: int) -> int:
            return len(self.decode(ids[:num_tokens]))

        start = bisect.bisect_right(lengths, span.start, key=num_chars) - 1
        return start, bisect.bisect_left(lengths, span.end, key=num_chars)


def _problem(spans: Sequence[Span], calls: Sequence[ToolCall]) -> str | None:
    raw = [span.call for span in spans if span.call]
    for call, emitted in zip(calls, raw, strict=True):
        problem = emitted.problem or call.problem
        if problem:
            return f"tool call {call.name!r}: {problem}"
    return None


def _check_roles(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        if message.role not in (*INSTRUCTIONS, "user", "assistant", "tool"):
            raise RecordError(
                f"message {index} has role {message.role!r}: expected system, developer, user, assistant or tool"
            )


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RecordError(
            f"tool definition has no name: {tool!r}; expected the OpenAI function form"
        )
    return function


def orphan_results(messages: Sequence[Message]) -> tuple[int, ...]:
    """Places of the tool results that rendering leaves out: marked so, or no earlier call has their id."""
    calls: set[str] = set()
    has_call = False
    orphans: list[int] = []
    for index, message in enumerate(messages):
        calls.update(call.id for call in message.tool_calls)
        has_call = has_call or bool(message.tool_calls)
        if message.role != "tool":
            continue
        known = has_call if message.tool_call_id is None else message.tool_call_id in calls
        if not known or ORPHAN_MARK in message.marks:
            orphans.append(index)
    return tuple(orphans)


def with_memory(opening: Sequence[Message], memory: str) -> tuple[Message, ...]:
    """The opening with recalled lessons as a system message of their own, after the first one.

    Renderers put the tool list behind the first system message, so policy and tools stay a prefix all tasks share.
    """
    if not memory:
        return tuple(opening)
    place = next((i + 1 for i, message in enumerate(opening) if message.role == "system"), 0)
    return (*opening[:place], Message("system", memory), *opening[place:])


# --- samples ----------------------------------------------------------------------------------------------------------


def merge_prefixes(trajectory: Trajectory) -> list[Sample]:
    """Token-exact samples of a rollout: turns whose prompt extends what came before become one sample.

    A turn whose prompt does not (a trimmed or rewritten context) starts a new sample. Turns that were not sampled by
    the policy carry no loss; samples without a sampled token are left out.

    Source: NVIDIA-NeMo/labs-molt and thinking-machines-lab/tinker-cookbook, `rl/data_processing.py`.

    Raises:
        Misaligned: a turn has another number of log-probabilities than of sampled tokens.
    """
    samples: list[_Growing] = []
    for turn in trajectory.turns:
        if turn.executor != "policy" or turn.prompt_ids is None or turn.completion_ids is None:
            continue
        if turn.logprobs is not None and len(turn.logprobs) != len(turn.completion_ids):
            raise Misaligned(
                f"turn {turn.index} of trajectory {trajectory.id!r}: got {len(turn.logprobs)} log-probabilities, "
                f"expected {len(turn.completion_ids)}, one per sampled token"
            )
        if not samples or not samples[-1].is_extended_by(turn.prompt_ids):
            samples.append(_Growing())
        samples[-1].grow(turn, turn.prompt_ids, turn.completion_ids)
    return [sample.done(trajectory.id) for sample in samples if any(sample.mask)]


class _Growing:
    """A sample under construction."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.turns: list[int] = []
        self.logprobs: list[float] = []
        self.has_logprobs = True

    def is_extended_by(self, prompt_ids: Sequence[int]) -> bool:
        return list(prompt_ids[: len(self.ids)]) == self.ids

    def grow(self, turn: Turn, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> None:
        self.add(prompt_ids[len(self.ids) :], None, ())
        self.has_logprobs = self.has_logprobs and turn.logprobs is not None
        self.add(completion_ids, turn.index, turn.logprobs or (0.0,) * len(completion_ids))

    def add(self, ids: Sequence[int], turn: int | None, logprobs: Sequence[float]) -> None:
        self.ids += ids
        self.mask += [turn is not None] * len(ids)
        self.turns += [-1 if turn is None else turn] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)

    def done(self, trajectory_id: str) -> Sample:
        return Sample(
            trajectory_id,
            input_ids_T=tuple(self.ids),
            action_mask_T=tuple(self.mask),
            logprobs_T=tuple(self.logprobs) if self.has_logprobs else None,
            turn_index_T=tuple(self.turns),
        )


def imitation_sample(
    example: Example, renderer: Renderer, tools: Sequence[dict[str, Any]]
) -> Sample:
    """The sample of a demonstration: loss on exactly the target messages, their end-of-turn token included.

    The text is tokenised here, so there are no behaviour log-probabilities.

    Raises:
        RecordError: a target is not an assistant message of the example, or a message cannot be rendered.
    """
    for target in example.targets:
        if not 0 <= target < len(example.messages) or example.messages[target].role != "assistant":
            raise RecordError(
                f"target {target} of example {example.id!r} is not an assistant message of its "
                f"{len(example.messages)} messages"
            )
    if not example.targets:
        raise RecordError(f"example {example.id!r} has no target message: expected at least one")
    ids: list[int] = []
    turns_T: list[int] = []
    for turn, part in enumerate(_parts(example)):
        given = renderer.observation(part.before) if turn else renderer.prompt(part.before, tools)
        emitted = renderer.completion(part.action)
        ids += (*given, *emitted)
        turns_T += [-1] * len(given) + [turn if part.is_target else -1] * len(emitted)
    return Sample(
        example.trajectory_id,
        input_ids_T=tuple(ids),
        action_mask_T=tuple(turn >= 0 for turn in turns_T),
        turn_index_T=tuple(turns_T),
        ce_weights_T=tuple(example.weight if turn >= 0 else 0.0 for turn in turns_T),
    )


class _Part(NamedTuple):
    before: list[Message]
    action: Message
    is_target: bool


def _parts(example: Example) -> Iterator[_Part]:
    """The conversation cut after each action up to the last target, instructions moved to the front."""
    orphans = set(orphan_results(example.messages))
    before = [message for message in example.messages if message.role in INSTRUCTIONS]
    for index, message in enumerate(example.messages[: max(example.targets) + 1]):
        if message.role == "assistant":
            yield _Part(before, message, index in example.targets)
            before = []
        elif index not in orphans and message.role not in INSTRUCTIONS:
            before.append(message)

"""The rollout engine in this process: any plain-attention Hugging Face causal language model, batched over slots.

All calls of `sample` that are waiting run together, one forward pass per turn of the event loop:

    admit      waiting prompts into idle slots, with the longest computed prefix found anywhere, and bring the slots
               that run together (`_slots.py`)
    forward    one new token of every running sequence and the missing tokens of new prompts, end to end, through the
               library's own modules with attention over a cache written in place (`_attention.py`)
    draw       a token for every sequence whose tokens are all computed (`_sampler.py`)
    settle     finished requests answer their callers, who may ask again before the next turn

There is no thread: the same requests in the same order give the same bits, in this process or another with as many
torch threads. A request's random numbers depend on its seed and token index alone, so in float32 neither the batch
around it nor a reused prefix changes its tokens; in bfloat16 the rounding of a product depends on its shape, so
log-probabilities move in the third digit and a close draw can fall the other way.

The sampled token and its log-probability come from the model's logits as they are, divided by the temperature; at
temperature 0 the log-probability is taken at temperature 1. The stop token is part of the completion.

Memory: two vectors in the model's dtype for each of `num_slots x slot_tokens` per layer and key-value head, resident only
where used.
Weights are never copied: change them only between `reset` calls, or cached prefixes answer for the old ones.
The caller owns `torch.set_num_threads`.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from components.errors import ConfigError, ModelCallError
from components.plugins import plugin
from components.protocols import Completion, Sampling
from components.rollout._attention import Run
from components.rollout._sampler import Sampler, uniform
from components.rollout._slot_model import SlotModel
from components.rollout._slots import Slots


@plugin
class EngineSettings:
    num_slots: int = 64
    """Sequences that run or are remembered at once; more requests wait their turn."""
    slot_tokens: int = 1024
    """Longest prompt and completion together, in tokens; the model's own limit also holds."""
    step_tokens: int = 2048
    """Most tokens of one forward pass; longer prompts are computed in pieces."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end a completion, the renderer's `stop_ids`."""

    def __post_init__(self) -> None:
        for name in ("num_slots", "slot_tokens", "step_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} of the engine must be at least 1, got {getattr(self, name)!r}"
                )
        if self.step_tokens < self.num_slots:
            raise ConfigError(
                f"step_tokens must be at least num_slots, one token each: got {self.step_tokens!r} "
                f"and {self.num_slots!r}"
            )


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was made or took another model."""

    num_computed: int = 0
    """Prompt tokens that went through the model."""
    num_reused: int = 0
    """Prompt tokens whose keys and values were already there."""
    num_sampled: int = 0
    num_shared: int = 0
    """Positions, summed over steps, that were read once for all running sequences."""
    num_moved: int = 0
    """Running sequences that were moved to another slot."""
    num_steps: int = 0
    seconds: float = 0.0
    """Time spent in steps."""

    @property
    def tokens_per_s(self) -> float | None:
        """Sampled tokens per second of work, prompts included in the time; None before the first step."""
        return self.num_sampled / self.seconds if self.seconds else None


@dataclass(slots=True)
class _Request:
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    answer: asyncio.Future[Completion]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TransformersEngine:
    """protocols.Engine over a loaded model; the adapter, if any, is merged by the caller."""

    def __init__(
        self, model: PreTrainedModel, policy_version: str, settings: EngineSettings
    ) -> None:
        self.stats = EngineStats()
        self.policy_version = policy_version
        self._settings = settings
        self._model = SlotModel(model, settings.num_slots, settings.slot_tokens)
        self._sampler = Sampler()
        self._slots = self._empty_slots()
        self._waiting: list[_Request] = []
        self._running: dict[int, _Request] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False

    @property
    def context_tokens(self) -> int:
        """Most tokens of one prompt and its completion together."""
        return self._model.shape.slot_tokens

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Draw one completion; calls awaited together are batched.

        Raises:
            ModelCallError: the request cannot be served, or the model gave no numbers.
        """
        prompt = tuple(prompt_ids)
        self._check(prompt, sampling)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._abandon()
            self._loop = loop
        request = _Request(prompt, sampling, loop.create_future())
        self._waiting.append(request)
        self._schedule(loop)
        return await request.answer

    def reset(
        self, policy_version: str | None = None, model: PreTrainedModel | None = None
    ) -> None:
        """Forget every cached prefix; call it when weights have changed, with their version.

        Another `model` takes the place of the one so far. The cache keeps its memory, whose first touch is slow.

        Raises:
            ModelCallError: requests are in flight.
            ConfigError: the model cannot be sampled here; the engine goes on with the one it has.
        """
        if self._loop is not None and self._loop.is_closed():
            self._abandon()
        if busy := len(self._waiting) + len(self._running):
            raise ModelCallError(
                f"the engine cannot be reset while {busy} requests are in flight; await them first"
            )
        self._slots = (
            self._empty_slots()
        )  # the probe of a model that is refused writes into the cache
        if model is not None:
            self._model.adopt(model)
            self._slots = self._empty_slots()  # of the new model's shape
            self.stats = EngineStats()
        self.policy_version = policy_version or self.policy_version

    def _abandon(self) -> None:
        """Drop what another event loop left behind: it has nobody to answer to."""
        self._is_scheduled = False
        self._waiting.clear()
        for slot in tuple(self._running):
            self._leave(slot)

    def _empty_slots(self) -> Slots:
        return Slots(self._settings.num_slots, self.context_tokens)

    def _check(self, prompt: tuple[int, ...], sampling: Sampling) -> None:
        if not prompt:
            raise ModelCallError("the prompt is empty: expected at least one token")
        if sampling.max_tokens < 1:
            raise ModelCallError(f"max_tokens must be at least 1, got {sampling.max_tokens!r}")
        if not 0 <= sampling.temperature < float("inf"):
            raise ModelCallError(
                f"temperature must be 0 or a positive number, got {sampling.temperature!r}"
            )
        if len(prompt) + sampling.max_tokens > self.context_tokens:
            raise ModelCallError(
                f"the prompt does not fit: {len(prompt)} tokens and max_tokens {sampling.max_tokens} "
                f"exceed the context of {self.context_tokens}; shorten the prompt or raise slot_tokens"
            )
        if min(prompt) < 0 or max(prompt) >= self._model.vocabulary:
            raise ModelCallError(
                f"the prompt has token ids from {min(prompt)} to {max(prompt)}, expected 0 to "
                f"{self._model.vocabulary - 1}"
            )

    # --- turns of the event loop --------------------------------------------------------------------------------------

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        self._is_scheduled = False
        started = time.perf_counter()
        try:
            self._step()
        except Exception as error:
            self._fail_all(error)
        self.stats.seconds += time.perf_counter() - started
        if self._waiting or self._running:
            self._schedule(loop)

    def _fail_all(self, error: Exception) -> None:
        """The forward pass broke: every caller hears of it, and the cache is not trusted."""
        requests = [*self._running.values(), *self._waiting]
        self._waiting.clear()
        self._running.clear()
        self._slots = self._empty_slots()
        self._model.clear()
        for request in requests:
            if not request.answer.done():
                failure = ModelCallError(f"the model failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                request.answer.set_exception(failure)

    def _step(self) -> None:
        self._waiting = [request for request in self._waiting if not request.answer.done()]
        for slot in [slot for slot, request in self._running.items() if request.answer.done()]:
            self._leave(slot)
        self._admit()
        self._compact()
        runs = self._runs()
        if not runs:
            return
        tokens = [token for run in runs for token in self._slots.next_tokens(run.slot, run.count)]
        num_shared = self._slots.shared_prefix([run.slot for run in runs if run.count == 1])
        logits_RV = self._model.forward(runs, tokens, num_shared)
        self.stats.num_steps += 1
        self.stats.num_shared += num_shared
        for run in runs:
            self._slots.advance(run.slot, run.count)
            if not self._running[run.slot].completion_ids:
                self.stats.num_computed += run.count
        ready = [row for row, run in enumerate(runs) if not self._slots.pending(run.slot)]
        if ready:
            drawn_RV = logits_RV if len(ready) == len(runs) else logits_RV[ready]
            self._draw(drawn_RV, [runs[row].slot for row in ready])

    # --- admission ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Conversations first, so that no stranger takes the slot that holds their history."""
        strangers: list[_Request] = []
        reserved: set[int] = set()
        for request in tuple(self._waiting):
            home = self._slots.home(request.prompt_ids)
            if home is None or home in reserved:
                strangers.append(request)
            elif not self._enter(request, home):
                reserved.add(home)
        for request in strangers:
            guest = self._slots.guest(reserved)
            if guest is None:
                return
            self._enter(request, guest)

    def _enter(self, request: _Request, slot: int) -> bool:
        """Start in an idle slot with all that any slot has computed; False where waiting a step saves more."""
        match = self._slots.match(request.prompt_ids)
        if match.is_worth_waiting:
            return False
        kept = int(match.held_S[slot])
        if kept < match.count:
            self._model.cache.copy(match.slot, slot, kept, match.count)
        self._waiting.remove(request)
        self._slots.occupy(slot, request.prompt_ids, match.count)
        self._running[slot] = request
        self.stats.num_reused += match.count
        return True

    def _compact(self) -> None:
        """Bring running sequences together: attention reads every slot in their range. What idles is kept."""
        for far, near in self._slots.compaction():
            self._running[near] = self._running.pop(far)
            self._model.cache.swap(far, near, *self._slots.swap(far, near))
            self.stats.num_moved += 1

    def _leave(self, slot: int, keep: bool = True) -> _Request:
        self._slots.release(slot, keep)
        return self._running.pop(slot)

    def _runs(self) -> list[Run]:
        """What this step computes: single tokens all, longer prompts as far as the step goes; by slot."""
        pending = {slot: self._slots.pending(slot) for slot in self._running}
        room = self._settings.step_tokens - sum(count == 1 for count in pending.values())
        takes: dict[int, int] = {}
        for slot, count in pending.items():
            takes[slot] = 1 if count == 1 else min(count, room)
            room -= takes[slot] if count > 1 else 0
        return [
            Run(slot, self._slots.computed(slot), takes[slot])
            for slot in sorted(takes)
            if takes[slot]
        ]

    # --- tokens ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _draw(self, logits_RV: torch.Tensor, slots: list[int]) -> None:
        requests = [self._running[slot] for slot in slots]
        drawn = self._sampler.draw(
            logits_RV,
            [request.sampling.temperature for request in requests],
            [uniform(each.sampling.seed, len(each.completion_ids)) for each in requests],
        )
        for row, slot in enumerate(slots):
            if not drawn.is_finite_B[row]:
                self._fail(slot)
                continue
            self._settle(slot, drawn.tokens_B[row], drawn.logprobs_B[row])

    def _settle(self, slot: int, token: int, logprob: float) -> None:
        request = self._running[slot]
        request.completion_ids.append(token)
        request.logprobs.append(logprob)
        self.stats.num_sampled += 1
        is_stop = token in self._settings.stop_ids
        if not is_stop and len(request.completion_ids) < request.sampling.max_tokens:
            self._slots.append(slot, token)
            return
        self._leave(slot)
        request.answer.set_result(
            Completion(
                completion_ids=tuple(request.completion_ids),
                logprobs=tuple(request.logprobs),
                finish_reason="stop" if is_stop else "length",
                policy_version=self.policy_version,
            )
        )

    def _fail(self, slot: int) -> None:
        """The model gave NaN or infinite logits: nothing of this slot may be reused."""
        request = self._leave(slot, keep=False)
        self._model.cache.clear(slot)
        request.answer.set_exception(
            ModelCallError(
                f"policy {self.policy_version!r} gave logits that are not finite after "
                f"{len(request.prompt_ids)} prompt and {len(request.completion_ids)} sampled tokens; "
                "check the weights of this version"
            )
        )

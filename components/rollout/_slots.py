"""Which sequence rests in which slot, and whose computed prefix a prompt can use.

A slot knows its tokens; the first `computed` of them have keys and values. A new prompt gets a slot in one of two ways:

    at home   an idle slot's tokens are all a prefix of the prompt (the next turn of one conversation): go on there
    guest     any other idle slot, the empty ones first, then the one unused for longest; the longest prefix that any
              slot has computed (a shared system prompt, the other samples of one task) is copied into it

At least one token of a prompt is always computed, because its logits are wanted. A prompt that shares more with tokens
about to be computed than with computed ones is worth a wait of a step: `promised` says so.

Shapes: S slot, C positions of a slot.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WORTH_WAITING = 16
"""Tokens that must be saved for a prompt to wait a step for another one's prefix."""

WORTH_SHARING = 32
"""Tokens that sequences must have in common for their keys to be read once for all."""


class Match(NamedTuple):
    slot: int
    count: int
    """Tokens of the prompt that the slot has computed."""
    promised: int
    """Tokens of the prompt that some slot has computed or is about to."""


class Slots:
    def __init__(self, num_slots: int, slot_tokens: int) -> None:
        self._tokens_SC = np.zeros((num_slots, slot_tokens), dtype=np.int64)
        self._known_S = np.zeros(num_slots, dtype=np.int64)
        self._computed_S = np.zeros(num_slots, dtype=np.int64)
        self._used_S = np.zeros(num_slots, dtype=np.int64)
        self._is_idle_S = np.ones(num_slots, dtype=bool)
        self._clock = 0

    @property
    def has_idle(self) -> bool:
        return bool(self._is_idle_S.any())

    def pending(self, slot: int) -> int:
        """Tokens known and not yet computed."""
        return int(self._known_S[slot] - self._computed_S[slot])

    def computed(self, slot: int) -> int:
        return int(self._computed_S[slot])

    def next_tokens(self, slot: int, count: int) -> list[int]:
        start = self._computed_S[slot]
        return self._tokens_SC[slot, start : start + count].tolist()

    def home(self, prompt_ids: Sequence[int]) -> int | None:
        """The idle slot whose tokens all begin the prompt, if no slot has computed more of it."""
        held = np.minimum(self._shared(prompt_ids), self._computed_S)
        is_home = self._is_idle_S & (held == self._computed_S) & (held > 0) & (held == held.max())
        return int(is_home.argmax()) if is_home.any() else None

    def match(self, prompt_ids: Sequence[int]) -> Match:
        """The slot that has computed most of the prompt."""
        shared = np.minimum(self._shared(prompt_ids), len(prompt_ids) - 1)
        held = np.minimum(shared, self._computed_S)
        best = int(held.argmax())
        return Match(best, int(held[best]), int(shared.max()))

    def common(self, slots: Sequence[int]) -> int:
        """Tokens from the first on that are the same in all these slots and computed; 0 where too few to matter."""
        if len(slots) < 2:
            return 0
        tokens_BC = self._tokens_SC[slots]
        differs_C = (tokens_BC != tokens_BC[0]).any(axis=0)
        first = int(differs_C.argmax()) if differs_C.any() else len(differs_C)
        count = min(first, int(self._computed_S[slots].min()))
        return count if count >= WORTH_SHARING else 0

    def guest(self) -> int:
        """The idle slot that is least worth keeping."""
        age = np.where(self._computed_S > 0, self._used_S, -1)
        return int(np.where(self._is_idle_S, age, np.iinfo(np.int64).max).argmin())

    def occupy(self, slot: int, prompt_ids: Sequence[int], computed: int) -> None:
        """Start a prompt whose first `computed` tokens the slot holds."""
        self._tokens_SC[slot, : len(prompt_ids)] = prompt_ids
        self._known_S[slot] = len(prompt_ids)
        self._computed_S[slot] = computed
        self._is_idle_S[slot] = False

    def advance(self, slot: int, count: int) -> None:
        """`count` pending tokens have been computed."""
        self._computed_S[slot] += count

    def append(self, slot: int, token: int) -> None:
        self._tokens_SC[slot, self._known_S[slot]] = token
        self._known_S[slot] += 1

    def release(self, slot: int, keep: bool = True) -> None:
        """Make the slot idle; what it has computed stays usable unless `keep` is False."""
        self._clock += 1
        if not keep:
            self._computed_S[slot] = 0
        self._known_S[slot] = self._computed_S[slot]
        self._used_S[slot] = self._clock
        self._is_idle_S[slot] = True

    def _shared(self, prompt_ids: Sequence[int]) -> np.ndarray:
        """Length of the common prefix of the prompt with each slot's known tokens."""
        prompt = np.asarray(prompt_ids, dtype=np.int64)
        differs = self._tokens_SC[:, : len(prompt)] != prompt
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), len(prompt))
        return np.minimum(first, self._known_S)

"""Which sequence rests in which slot, and whose computed prefix a prompt can use.

A slot knows its tokens; the first `computed` of them have keys and values. A new prompt gets a slot in one of two ways:

    at home   the idle slot that holds most of the prompt and nothing else (the next turn of one conversation)
    guest     any other idle slot, the empty ones first, then the one unused for longest

Where another slot has computed more of the prompt (a shared system prompt, the other samples of one task), what is
missing is copied from there. At least one token of a prompt is always computed, because its logits are wanted. A prompt
that shares more with tokens about to be computed than with computed ones is worth a wait of a step: `promised` says so.
Attention reads every slot from the first to the last that runs, so those that run are brought together (`compaction`)
where many idle ones lie between them, and what they all begin with is read once (`shared_prefix`).

Shapes: S slot, C positions of a slot.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

WORTH_WAITING = 16
"""Tokens that must be saved for a prompt to wait a step for another one's prefix."""

WORTH_SHARING = 32
"""Tokens that sequences must have in common for their keys to be read once for all."""

WORTH_MOVING = 8
"""Idle slots between running ones that make it worth bringing these together."""


class Match(NamedTuple):
    slot: int
    """One that has computed most of the prompt."""
    held_S: np.ndarray
    """Tokens of the prompt that each slot has computed."""
    promised: int
    """Tokens of the prompt that some slot has computed or is about to."""

    @property
    def count(self) -> int:
        return int(self.held_S[self.slot])

    @property
    def is_worth_waiting(self) -> bool:
        return self.promised - self.count >= WORTH_WAITING


class Slots:
    def __init__(self, num_slots: int, slot_tokens: int) -> None:
        self._tokens_SC = np.zeros((num_slots, slot_tokens), dtype=np.int64)
        self._known_S = np.zeros(num_slots, dtype=np.int64)
        self._computed_S = np.zeros(num_slots, dtype=np.int64)
        self._used_S = np.zeros(num_slots, dtype=np.int64)
        self._is_idle_S = np.ones(num_slots, dtype=bool)
        self._clock = 0

    def pending(self, slot: int) -> int:
        """Tokens known and not yet computed."""
        return int(self._known_S[slot] - self._computed_S[slot])

    def computed(self, slot: int) -> int:
        return int(self._computed_S[slot])

    def next_tokens(self, slot: int, count: int) -> list[int]:
        start = self._computed_S[slot]
        return self._tokens_SC[slot, start : start + count].tolist()

    def home(self, prompt_ids: Sequence[int]) -> int | None:
        """Of the idle slots whose tokens all begin the prompt, the one that holds most of it."""
        held = np.minimum(self._shared(prompt_ids), self._computed_S)
        is_home = self._is_idle_S & (held == self._computed_S) & (held > 0)
        return int(np.where(is_home, held, -1).argmax()) if is_home.any() else None

    def match(self, prompt_ids: Sequence[int]) -> Match:
        """The slot that has computed most of the prompt."""
        shared = np.minimum(self._shared(prompt_ids), len(prompt_ids) - 1)
        held_S = np.minimum(shared, self._computed_S)
        return Match(int(held_S.argmax()), held_S, int(shared.max()))

    def shared_prefix(self, slots: Sequence[int]) -> int:
        """Tokens from the first on that are the same in all these slots and computed; 0 where too few to matter."""
        if len(slots) < 2:
            return 0
        tokens_BC = self._tokens_SC[slots]
        differs_C = (tokens_BC != tokens_BC[0]).any(axis=0)
        first = int(differs_C.argmax()) if differs_C.any() else len(differs_C)
        count = min(first, int(self._computed_S[slots].min()))
        return count if count >= WORTH_SHARING else 0

    def guest(self, reserved: Collection[int] = ()) -> int | None:
        """The idle slot that is least worth keeping; None where all that are idle are reserved."""
        is_free_S = self._is_idle_S.copy()
        is_free_S[list(reserved)] = False
        if not is_free_S.any():
            return None
        age = np.where(self._computed_S > 0, self._used_S, -1)
        return int(np.where(is_free_S, age, np.iinfo(np.int64).max).argmin())

    def compaction(self) -> list[tuple[int, int]]:
        """Occupied and idle slots to exchange so that no idle one lies between occupied ones; none where few do."""
        busy = np.flatnonzero(~self._is_idle_S)
        if not len(busy) or busy[-1] - busy[0] + 1 - len(busy) < WORTH_MOVING:
            return []
        end = int(busy[0]) + len(busy)
        near = np.flatnonzero(self._is_idle_S[:end])
        return list(zip(busy[busy >= end].tolist(), near[near > busy[0]].tolist(), strict=True))

    def swap(self, one: int, other: int) -> tuple[int, int]:
        """Exchange two slots; the range of computed positions in which they differ."""
        pair, turned = [one, other], [other, one]
        differs_C = self._tokens_SC[one] != self._tokens_SC[other]
        stop = int(self._computed_S[pair].max())
        start = int(differs_C.argmax()) if differs_C.any() else stop
        start = min(start, int(self._computed_S[pair].min()))
        for of_slot in (
            self._tokens_SC,
            self._known_S,
            self._computed_S,
            self._used_S,
            self._is_idle_S,
        ):
            of_slot[pair] = of_slot[turned]
        return start, stop

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

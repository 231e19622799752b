"""Recalled entries into the prompt, without those that were tried and do not help.

The store ranks entries (vector and text ranks fused) and counts the conversations that saw them as `uses` and `successes`;
here the best ones become a block of text under a budget.

    utility = (successes + 1) / (uses + 2)      3 uses, no success: 0.2      3, 1: 0.4      2, 0: 0.25

An entry with at least `MIN_USES` uses and a utility below `MIN_UTILITY` is left out: it was tried and does not help.
Source: utility and pruning as in MemHarness (arXiv 2607.28272).
Our choice: the budget is counted in characters, whole entries only, and a later entry may still fit where an earlier did
not; entries with equal content appear once. Nothing recalled gives an empty text, so the prompt equals the one without
memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

from components.records import MemoryEntry

MIN_USES = 3
MIN_UTILITY = 0.3
HEADER = "Lessons:"


class Block(NamedTuple):
    text: str
    """Goes into the prompt as it stands; empty for none."""
    entry_ids: tuple[str, ...]
    """The entries that are in it."""


def utility(entry: MemoryEntry) -> float:
    return (entry.successes + 1) / (entry.uses + 2)


def is_useful(entry: MemoryEntry) -> bool:
    """Whether it is untried, or helps often enough."""
    return entry.uses < MIN_USES or utility(entry) >= MIN_UTILITY


def memory_block(ranked: Sequence[MemoryEntry], max_chars: int) -> Block:
    """The best entries as prompt text, in the order given, within `max_chars` characters, the header included."""
    lines: list[str] = []
    chosen: list[str] = []
    seen: set[str] = set()
    left = max_chars - len(HEADER)
    for entry in ranked:
        line = _line(entry)
        if not is_useful(entry) or entry.content in seen or len(line) + 1 > left:
            continue
        lines.append(line)
        chosen.append(entry.id)
        seen.add(entry.content)
        left -= len(line) + 1
    return Block("\n".join([HEADER, *lines]) if lines else "", tuple(chosen))


def _line(entry: MemoryEntry) -> str:
    asked = entry.cue.split(" | ")[0]
    return f'- "{asked}": ' + entry.content.replace("\nOr: ", "; or: ")

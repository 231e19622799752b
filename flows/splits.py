"""Held-out and trained-on stay apart: which conversations are held out, and which texts repeat one another.

With an environment the world keeps its test tasks apart by content. Without one, a share of the conversations is held
out: by task where the log names it, so that trials of one task stay together, else by conversation.
Two texts are near-duplicates when they share thirteen words in a row, or are the same shorter text.
"""

import re
from collections.abc import Iterable, Sequence

from components.records import Message, Trajectory
from components.serial import digest

TEST_SHARE = 0.2
NGRAM = 13


def is_held_out(trajectory: Trajectory) -> bool:
    """Whether a conversation is kept for evaluation, in a project without an environment."""
    key = trajectory.task_id or trajectory.conversation_id or trajectory.id
    return int(digest(key)[:8], 16) / 16**8 < TEST_SHARE


def said_by_user(messages: Iterable[Message]) -> str:
    """What tells two conversations apart: all that the user said."""
    return "\n".join(message.text for message in messages if message.role == "user")


def overlaps(held: Iterable[str], trained: Iterable[str]) -> list[str]:
    """The first texts that are near-duplicates of one of the second; texts without words never are."""
    known: set[tuple[str, ...]] = set()
    for text in trained:
        known.update(_grams(text))
    return [text for text in held if _grams(text) & known]


def without_duplicates(
    training: Sequence[Trajectory], held: Sequence[Trajectory]
) -> list[Trajectory]:
    """The training conversations that repeat none of the held-out ones."""
    texts = [said_by_user(item.messages) for item in training]
    repeated = set(overlaps(texts, [said_by_user(item.messages) for item in held]))
    return [item for item, text in zip(training, texts, strict=True) if text not in repeated]


def _grams(text: str) -> set[tuple[str, ...]]:
    words = tuple(re.findall(r"\w+", text.casefold()))
    if len(words) <= NGRAM:
        return {words} if words else set()
    return {words[start : start + NGRAM] for start in range(len(words) - NGRAM + 1)}

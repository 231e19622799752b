"""The words of a request that tell its kind, and what must not be told.

Our choice: the list of words that tell nothing; it holds the words that introduce a particular (`my account is <email>`).
"""

import re

from components.embedding import mask, mask_values

STOP_WORDS = """
a about account again all also am an and any are as at be been but by can could did do does email evening for from get give
good got had has have hello here hey hi how i if in into is it its just let like me morning my no not now of off on one or our out
please so some tell thank thanks that the their them then there these they this to up us want was we were what when where
which who will with would you your
"""
STOPPED = frozenset(STOP_WORDS.split())


def content_words(cue: str) -> frozenset[str]:
    """The words of a cue that tell requests apart."""
    plain = re.sub(r"<[^>]*>", " ", cue.casefold())
    return frozenset(word for word in re.findall(r"[a-z]{3,}", plain) if word not in STOPPED)


def telling_words(cue: str) -> frozenset[str]:
    """What tells kinds of requests apart: content words, and which particulars are given."""
    return content_words(cue) | frozenset(re.findall(r"<[^>]*>", cue.casefold()))


def cue_of(asked: str, fields: dict[str, str]) -> str:
    """A customer's words without particulars, and without sentences that say nothing, such as greetings."""
    masked = mask(mask_values(asked, fields))
    masked = re.sub(r"\b(\w+) <\1>", _lower, masked, flags=re.IGNORECASE)
    sentences = re.split(r"(?<=[.!?])\s+", masked)
    return " ".join(sentence for sentence in sentences if content_words(sentence))


def _lower(found: re.Match[str]) -> str:
    return f"<{found[1].lower()}>"


def leaks(text: str, particulars: frozenset[str]) -> bool:
    """Whether a text repeats a value of one conversation."""
    return any(
        re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE) for value in particulars
    )

"""What the mode finder reads of a case: its structure, and the one sentence that says what went wrong.

Structure is the kind and tool of the signature. Where a miner names no kind (`unknown||`), the text must speak: tools
are recognised by name in any spelling (`cancel_order`, `cancel order`, `CancelOrder`), and the sentence that names the tool
is the telling one; the rest (who the customer was, what the weather is) is left out. A text that names no tool is read
whole.
Our choice: a name counts as a tool when a signature says so, or when it is written with an underscore, a dot or in camel
case in the summaries of at least `MIN_USES` cases.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from components.embedding import mask
from components.records import FailureCase

UNSAID = frozenset({"", "unknown", "other"})
"""Kinds that say nothing."""
MIN_USES = 3
IDENTIFIER = re.compile(r"\b[a-z][a-z0-9]*(?:[_.][a-z0-9]+)+\b|\b[A-Za-z]?[a-z]+(?:[A-Z][a-z]+)+\b")
SENTENCE = re.compile(r"(?<=[.!?;])\s+|\s+[-–—]\s+|\n+")
TOOL = "<TOOL>"


@dataclass(frozen=True, slots=True)
class Reading:
    kind: str
    """Empty when the signature names none."""
    tool: str
    """Empty when neither the signature nor the text names one."""
    text: str
    """Masked; what is embedded."""

    @property
    def key(self) -> tuple[str, ...]:
        """Cases with different keys are never in one mode; cases read from text are told apart later."""
        return (self.kind, self.tool) if self.kind else ("",)


def read(cases: Sequence[FailureCase]) -> list[Reading]:
    spelled = _spellings(_tools(cases))
    pattern = _pattern(spelled)
    known: dict[str, tuple[str, str]] = {}
    readings: list[Reading] = []
    for case in cases:
        kind = "" if case.kind in UNSAID else case.kind
        if kind:
            readings.append(Reading(kind, case.tool or "", mask(case.summary)))
            continue
        if case.summary not in known:
            known[case.summary] = _telling(case.summary, pattern, spelled)
        tool, text = known[case.summary]
        readings.append(Reading("", case.tool or tool, text))
    return readings


def _tools(cases: Sequence[FailureCase]) -> set[str]:
    named = {case.tool for case in cases if case.tool}
    free = Counter(case.summary for case in cases if case.kind in UNSAID)
    uses: Counter[str] = Counter()
    for text, count in free.items():
        uses.update(dict.fromkeys(IDENTIFIER.findall(text), count))
    return named | {name for name, count in uses.items() if count >= MIN_USES}


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace(".", "_").split("_"))


def _spellings(tools: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Words of a tool's name -> the name; two spellings of one tool share their words."""
    return {_words(name): name for name in sorted(tools, reverse=True)}


def _pattern(spelled: dict[tuple[str, ...], str]) -> re.Pattern[str] | None:
    if not spelled:
        return None
    longest = sorted(spelled, key=lambda words: (-len(words), words))
    choices = "|".join(r"[_.\s-]?".join(map(re.escape, words)) for words in longest)
    return re.compile(rf"\b(?:{choices})\b", re.IGNORECASE)


def _telling(
    summary: str, pattern: re.Pattern[str] | None, spelled: dict[tuple[str, ...], str]
) -> tuple[str, str]:
    """The tool a summary names first, and its telling sentence."""
    found = pattern.search(summary) if pattern else None
    if pattern is None or found is None:
        return "", mask(summary)
    parts = re.split(r"[_.\s-]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[0]).lower())
    tool = spelled.get(tuple(parts), found[0])
    sentences = [mask(pattern.sub(TOOL, part)) for part in SENTENCE.split(summary)]
    telling = [sentence for sentence in sentences if TOOL in sentence]
    return tool, telling[0]

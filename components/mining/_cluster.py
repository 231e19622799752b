"""Cases of one night that belong together, and what such a family is called."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from components.mining._fragments import Array
from components.mining._reading import TOOL, Reading
from components.records import FailureCase

NAME = 72
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cases of tonight that belong together."""

    cases: tuple[FailureCase, ...]
    readings: tuple[Reading, ...]
    centroid: Array
    loose: bool = False
    """Most of its cases are worded like no other."""

    @property
    def signature(self) -> str:
        """The most common signature; cases read from text get one with their tool."""
        reading = self.readings[0]
        if not reading.kind:
            return f"unknown|{reading.tool}|"
        return _most_common([case.signature for case in self.cases])

    @property
    def name(self) -> str:
        """Kind, tool and, where most cases share it, the detail; cases read from text: their telling sentence."""
        reading = self.readings[0]
        if not reading.kind:
            text = _most_common([reading.text for reading in self.readings])
            name = text.replace(TOOL, reading.tool or TOOL)
        else:
            name = reading.kind.replace("_", " ").capitalize()
            name += f": {reading.tool}" if reading.tool else ""
            details = [case.signature.split("|")[-1] for case in self.cases]
            detail = _most_common(details)
            name += f" ({detail})" if detail and 2 * details.count(detail) > len(details) else ""
        return name if len(name) <= NAME else name[: NAME - 1] + "…"

    @property
    def description(self) -> str:
        """The most common summaries."""
        summaries = Counter(case.summary for case in self.cases)
        common = sorted(summaries, key=lambda text: (-summaries[text], text))[:3]
        return " / ".join(common)


def gather(
    group: Sequence[tuple[FailureCase, Reading]],
    labels: dict[str, int],
    vectors: Array,
    rows: dict[str, int],
) -> list[Cluster]:
    """Clusters of one structure: one per group of texts and tool."""
    members: dict[tuple[int, str], list[tuple[FailureCase, Reading]]] = defaultdict(list)
    for case, reading in group:
        members[labels[reading.text], reading.tool].append((case, reading))
    clusters: list[Cluster] = []
    for (label, _), pairs in members.items():
        mean = np.mean([vectors[rows[reading.text]] for _, reading in pairs], axis=0)
        norm = float(np.linalg.norm(mean))
        cases, readings = zip(*pairs, strict=True)
        clusters.append(Cluster(cases, readings, mean / norm if norm else mean, label < 0))
    return clusters


def _most_common(values: Sequence[str]) -> str:
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))

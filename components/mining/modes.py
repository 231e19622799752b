"""Failure modes: cases into named families by structure and meaning, followed across nights.

1. Read each case: kind and tool from its signature; where the signature names no kind, tool and telling sentence
   from its summary (`_reading.py`). Dismissed cases are left out. A mode that a person gave to a reviewed case is kept.
2. Embed distinct texts only. Within one structure, gather near-equal texts into fragments and merge the fragments
   (`_fragments.py`). Cases read from text are gathered over all tools at once, so that one kind of fault is learnt from
   all of them, and then told apart by tool.
3. Match with the modes of earlier nights: same kind and tool, and the same signature or a centroid at cosine >=
   `similarity`; the nearest one wins. Several groups may fall into one known mode. The rest are new modes, but a
   group read from text needs `min_cases` cases, and most of its cases in common wordings: scattered complaints
   have no mode.
   What is too small to found a mode may still join a new one.
4. Count per night and replay the status (`_status.py`). Names, descriptions and embeddings of known modes never change
   here, so a name given by a person stays.

Deterministic, and the same for any order of cases; a second run of a night with its own result as `known` gives the same
modes. Without cases the known modes come back unchanged. A mode whose cases were all dismissed stays with count 0, `fixed`.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from components.mining import _fragments as fragments
from components.mining._cluster import Cluster, gather
from components.mining._reading import Reading, read
from components.mining._status import status_of
from components.plugins import plugin, version_of
from components.protocols import Embed
from components.records import FailureCase, FailureMode, Lineage
from components.serial import digest

PARENTS = 20
"""Founding cases named in a mode's lineage."""


@plugin
class Modes:
    near: float = 0.85
    """Cosine at which two texts are one wording, in (0, 1]."""
    similarity: float = 0.58
    """Cosine at which two wordings mean the same failure, in (0, 1]; below `near`."""
    min_cases: int = 3
    """Cases that a new mode read from text needs, and that make a wording common; at least 1."""
    min_rate: float = 0.002
    """Share of the cases read from text that makes a wording common, in [0, 1); the larger bound counts."""

    def __post_init__(self) -> None:
        ordered = 0 < self.similarity <= self.near <= 1
        if not ordered or self.min_cases < 1 or not 0 <= self.min_rate < 1:
            raise ValueError(
                "expected 0 < similarity <= near <= 1, min_cases >= 1 and min_rate in [0, 1), "
                f"got {self.similarity!r}, {self.near!r}, {self.min_cases!r}, {self.min_rate!r}"
            )

    def find(
        self, cases: Sequence[FailureCase], known: Sequence[FailureMode], embed: Embed, night: str
    ) -> tuple[list[FailureCase], list[FailureMode]]:
        """The cases, in their order, with their mode; and all modes as of this night, known ones first."""
        counted = [case for case in cases if not _dismissed(case)]
        if not cases:
            return list(cases), list(known)
        assigned: dict[str, str | None] = {
            case.id: case.mode_id for case in counted if case.review and case.mode_id
        }
        modes = list(known)
        small: list[Cluster] = []
        for cluster in self._clusters([c for c in counted if c.id not in assigned], embed):
            mode = self._match(cluster, known)
            if mode is None and self._can_found(cluster):
                mode = self._found(cluster, night)
                modes.append(mode)
            if mode is None:
                small.append(cluster)
            else:
                assigned.update({case.id: mode.id for case in cluster.cases})
        for cluster in small:
            mode = self._match(cluster, modes)
            assigned.update({case.id: mode.id if mode else None for case in cluster.cases})
        tonight = Counter(mode_id for mode_id in assigned.values() if mode_id)
        placed = [replace(case, mode_id=assigned.get(case.id, case.mode_id)) for case in cases]
        return placed, _counted(modes, tonight, night)

    def _can_found(self, cluster: Cluster) -> bool:
        known_kind = bool(cluster.readings[0].kind)
        return known_kind or (not cluster.loose and len(cluster.cases) >= self.min_cases)

    def _clusters(self, cases: Sequence[FailureCase], embed: Embed) -> list[Cluster]:
        ordered = sorted(cases, key=lambda case: case.id)
        by_key: dict[tuple[str, ...], list[tuple[FailureCase, Reading]]] = defaultdict(list)
        for case, reading in zip(ordered, read(ordered), strict=True):
            by_key[reading.key].append((case, reading))
        texts = sorted({reading.text for group in by_key.values() for _, reading in group})
        vectors = np.asarray(embed(texts), dtype=np.float32)
        rows = {text: row for row, text in enumerate(texts)}
        found: list[Cluster] = []
        for key in sorted(by_key):
            counts = Counter(reading.text for _, reading in by_key[key])
            own = sorted(counts)
            own_vectors = vectors[[rows[text] for text in own]]
            labels = self._labels(own_vectors, [counts[text] for text in own])
            found.extend(gather(by_key[key], dict(zip(own, labels, strict=True)), vectors, rows))
        return sorted(found, key=lambda cluster: (-len(cluster.cases), cluster.cases[0].id))

    def _labels(self, vectors_ND: fragments.Array, weights: Sequence[int]) -> list[int]:
        """The group of each text; below zero for loose groups, of which most wordings are rare."""
        first = fragments.leaders(vectors_ND, weights, self.near)
        means = fragments.centroids(vectors_ND, weights, first)
        sizes = [0] * len(means)
        for label, weight in zip(first, weights, strict=True):
            sizes[label] += weight
        second = fragments.merge(means, sizes, self.similarity)
        enough = max(self.min_cases, self.min_rate * sum(weights))
        common = Counter[int]()
        whole = Counter[int]()
        for label, size in zip(second, sizes, strict=True):
            whole[label] += size
            common[label] += size if size >= enough else 0
        loose = {label for label in whole if 2 * common[label] < whole[label]}
        return [-1 - second[label] if second[label] in loose else second[label] for label in first]

    def _match(self, cluster: Cluster, known: Sequence[FailureMode]) -> FailureMode | None:
        signature = cluster.signature
        best: tuple[float, str] | None = None
        for mode in known:
            if mode.signature.split("|")[:2] != signature.split("|")[:2]:
                continue
            cosine = (
                float(cluster.centroid @ np.asarray(mode.embedding, np.float32))
                if mode.embedding is not None
                else 0.0
            )
            same = bool(cluster.readings[0].kind) and mode.signature == signature
            if same or cosine >= self.similarity:
                best = min(best or (2.0, ""), (1.0 - cosine, mode.id))
        return next((mode for mode in known if best and mode.id == best[1]), None)

    def _found(self, cluster: Cluster, night: str) -> FailureMode:
        founders = tuple(case.id for case in cluster.cases[:PARENTS])
        config = digest(dataclasses.asdict(self))
        return FailureMode(
            id=digest({"signature": cluster.signature, "night": night, "first": founders[0]}),
            name=cluster.name,
            description=cluster.description,
            signature=cluster.signature,
            status="new",
            counts={},
            lineage=Lineage(founders, "mining/modes", version_of(self), "rule", config),
            embedding=tuple(float(value) for value in cluster.centroid),
        )


def _dismissed(case: FailureCase) -> bool:
    return case.review is not None and case.review.verdict == "dismissed"


def _counted(modes: Sequence[FailureMode], tonight: Counter[str], night: str) -> list[FailureMode]:
    """The modes with tonight's count and status; counts of later nights are kept but not looked at."""
    nights = sorted({past for mode in modes for past in mode.counts if past < night} | {night})
    counted: list[FailureMode] = []
    for mode in modes:
        begun = min((past for past, count in mode.counts.items() if count), default=night)
        if begun > night and not tonight[mode.id]:
            counted.append(mode)
            continue
        own = {past: mode.counts.get(past, 0) for past in nights if past >= begun}
        own[night] = tonight[mode.id]
        history = [own[past] for past in sorted(own)]
        status = status_of(history) if history[0] else "fixed"
        later = {past: count for past, count in mode.counts.items() if past > night}
        counted.append(replace(mode, counts=own | later, status=status))
    return counted

"""Texts into groups: near-equal ones first, then groups of one meaning.

Two passes over distinct texts, heaviest first. *Leaders*: a text joins the nearest leader with cosine >= `near`, else it
leads; this shrinks thousands of wordings to hundreds of fragments in one sweep of matrix products. *Merging*: average
linkage over the leaders' centroids, down to cosine `merge`. Both are deterministic; ties go to the heavier, then to the
first in alphabetical order. Shapes: vectors_ND of N texts, unit rows; a zero row is alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.cluster import AgglomerativeClustering

Array = np.ndarray[Any, np.dtype[np.float32]]
MAX_LINKED = 4_000
"""Fragments that average linkage looks at (its memory grows with the square); lighter ones stay as they are."""


def leaders(vectors_ND: Array, weights: Sequence[int], near: float, block: int = 512) -> list[int]:
    """The fragment of each text; fragments are numbered in the order in which they were founded."""
    order = sorted(range(len(weights)), key=lambda row: (-weights[row], row))
    labels = [-1] * len(weights)
    led = np.zeros((0, vectors_ND.shape[1]), np.float32)
    for start in range(0, len(order), block):
        rows = order[start : start + block]
        chunk = vectors_ND[rows]
        best = np.full(len(rows), -1)
        if len(led):
            cosines = chunk @ led.T
            nearest = cosines.argmax(axis=1)
            fits = cosines[np.arange(len(rows)), nearest] >= near
            best = np.where(fits, nearest, -1)
        led = _lead(chunk, best, led, near)
        for row, label in zip(rows, best, strict=True):
            labels[row] = int(label)
    return labels


def _lead(chunk: Array, best: Any, led: Array, near: float) -> Array:
    """Give a fragment to each text of the block that fits no earlier leader; the leaders, extended."""
    cosines = chunk @ chunk.T
    founded: list[int] = []
    for at in range(len(chunk)):
        if best[at] >= 0:
            continue
        near_ones = [place for place, other in enumerate(founded) if cosines[at, other] >= near]
        if near_ones:
            best[at] = len(led) + max(near_ones, key=lambda place: cosines[at, founded[place]])
        else:
            best[at] = len(led) + len(founded)
            founded.append(at)
    return np.concatenate([led, chunk[founded]]) if founded else led


def centroids(vectors_ND: Array, weights: Sequence[int], labels: Sequence[int]) -> Array:
    """Unit weighted mean of each group; groups are numbered 0, 1, ... without gaps."""
    sums = np.zeros((max(labels, default=-1) + 1, vectors_ND.shape[1]), np.float64)
    np.add.at(sums, np.asarray(labels, int), vectors_ND * np.asarray(weights, float)[:, None])
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return (sums / np.where(norms == 0, 1.0, norms)).astype(np.float32)


def merge(centroids_FD: Array, weights: Sequence[int], threshold: float) -> list[int]:
    """The group of each fragment, by average linkage down to cosine `threshold`; numbered by weight."""
    count = len(weights)
    order = sorted(range(count), key=lambda row: (-weights[row], row))
    linked = order[:MAX_LINKED]
    labels = list(range(count))
    if len(linked) > 1:
        distances = np.clip(1.0 - centroids_FD[linked] @ centroids_FD[linked].T, 0.0, 2.0)
        model = AgglomerativeClustering(
            n_clusters=None,  # pyright: ignore[reportArgumentType]  (documented, missing in the stub)
            metric="precomputed",
            linkage="average",
            distance_threshold=1.0 - threshold,
        )
        for row, label in zip(linked, model.fit_predict(distances), strict=True):
            labels[row] = count + int(label)
    return _renumber(labels, order)


def _renumber(labels: Sequence[int], order: Sequence[int]) -> list[int]:
    numbers: dict[int, int] = {}
    for row in order:
        numbers.setdefault(labels[row], len(numbers))
    return [numbers[label] for label in labels]

"""Tree packing: samples that share a token prefix are computed once up to where they part.

The samples of a pack form a trie over token ids, laid out depth first. A node is one token of one or more samples; its
position is its depth; it attends to its ancestors and itself. So G rollouts of one task cost P + G*C tokens instead of
G*(P + C), conversations share their system prompt, and there is no padding at all.

In depth-first order node j is an ancestor of node i, or i itself, exactly if j <= i < end[j], where end[j] is the first
node after the subtree of j. Of the nodes before a run of nodes, only the ancestors of its first one can matter to the
run: attention therefore works on runs of `BLOCK` nodes against few keys, not on an N x N score.

Packs hold at most `max_tokens` nodes; samples are ordered by their ids, which puts common prefixes side by side, and cut
where the fewest nodes are computed in total. With several workers, the number of packs is the one with which the busiest
worker has least to do. A sample longer than the bound gets a pack of its own.
Shapes: _N nodes of one pack, _T tokens of one sample, _K keys of one block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from components.learner.attention import Block

BLOCK = 128
"""Query nodes per block of attention."""
PACK_COST = 32
"""Our choice: what one more pack costs, in tokens; keeps packs from being cut where nothing is gained."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Samples laid out as one tree."""

    samples: tuple[int, ...]
    """Places of the samples in the list that was packed."""
    input_ids_N: Tensor
    position_ids_N: Tensor
    nodes: tuple[Tensor, ...]
    """Per sample: the node of each of its T tokens."""
    blocks: tuple[Block, ...]


def pack(
    sequences: Sequence[Sequence[int]],
    max_tokens: int,
    num_workers: int = 1,
    device: str = "cpu",
) -> list[Pack]:
    """Packs that together hold every sequence once, the largest first; empty sequences are refused by the caller."""
    order = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    line = _Line(
        [len(sequences[index]) for index in order],
        [0, *(_shared(sequences[a], sequences[b]) for a, b in pairwise(order))],
    )
    packs = [
        _layout(order[start:stop], sequences, line.shared[start:stop], device)
        for start, stop in _best_cuts(line, max_tokens, num_workers)
    ]
    return sorted(packs, key=lambda tree: -len(tree.input_ids_N))


class _Line(NamedTuple):
    """The samples in order: their lengths, and what each shares with the one before."""

    lengths: list[int]
    shared: list[int]

    def size(self, start: int, stop: int) -> int:
        """Nodes of a pack of these samples."""
        return sum(self.lengths[start:stop]) - sum(self.shared[start + 1 : stop])


def _best_cuts(line: _Line, max_tokens: int, num_workers: int) -> list[tuple[int, int]]:
    cuts = _cuts(line, max_tokens)
    if num_workers == 1 or not cuts:
        return cuts
    total = line.size(0, len(line.lengths))
    common = min(line.shared[1:], default=0)
    options = [cuts]
    for num_packs in range(num_workers, 4 * num_workers + 1):
        bound = -(-(total + (num_packs - 1) * common) // num_packs)
        options.append(_cuts(line, min(bound, max_tokens)))
    return min(options, key=lambda each: _busiest(each, line, num_workers))


def _busiest(cuts: list[tuple[int, int]], line: _Line, num_workers: int) -> int:
    """Nodes of the busiest worker when each takes the largest pack that is left."""
    loads = [0] * num_workers
    for size in sorted((line.size(*each) + PACK_COST for each in cuts), reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))


def _cuts(line: _Line, max_tokens: int) -> list[tuple[int, int]]:
    """Half-open ranges of the ordered samples that minimise the number of computed nodes, by dynamic programming."""
    lengths, shared = line
    fresh = [length - common for length, common in zip(lengths, shared, strict=True)]
    upto = [0, *accumulate(fresh)]
    best = [0]
    came_from = [0]
    for stop in range(1, len(lengths) + 1):
        options: list[tuple[int, int]] = []
        for start in reversed(range(stop)):
            size = upto[stop] - upto[start] + shared[start]
            if size > max_tokens and start < stop - 1:
                break
            options.append((best[start] + size + PACK_COST, start))
        cost, start = min(options)
        best.append(cost)
        came_from.append(start)
    ranges: list[tuple[int, int]] = []
    stop = len(lengths)
    while stop:
        ranges.append((came_from[stop], stop))
        stop = came_from[stop]
    return ranges[::-1]


def _layout(
    samples: list[int], sequences: Sequence[Sequence[int]], shared: list[int], device: str
) -> Pack:
    ids: list[int] = []
    depths: list[int] = []
    parents: list[int] = []
    paths: list[list[int]] = []
    for rank, index in enumerate(samples):
        common = shared[rank] if rank else 0
        sequence = sequences[index]
        path = paths[-1][:common] if common else []
        fresh = range(len(ids), len(ids) + len(sequence) - common)
        parents += [path[-1] if path else -1, *fresh[:-1]] if fresh else []
        ids += sequence[common:]
        depths += range(common, len(sequence))
        paths.append([*path, *fresh])
    return Pack(
        tuple(samples),
        torch.tensor(ids, device=device),
        torch.tensor(depths, device=device),
        tuple(torch.tensor(path, device=device) for path in paths),
        _blocks(parents, device),
    )


def _blocks(parents: list[int], device: str) -> tuple[Block, ...]:
    num = len(parents)
    ends = list(range(1, num + 1))
    for node in reversed(range(num)):
        if parents[node] >= 0:
            ends[parents[node]] = max(ends[parents[node]], ends[node])
    ends_N = torch.tensor(ends, device=device)
    nodes_N = torch.arange(num, device=device)
    blocks: list[Block] = []
    for start in range(0, num, BLOCK):
        stop = min(start + BLOCK, num)
        ancestors: list[int] = []
        node = parents[start]
        while node >= 0:
            ancestors.append(node)
            node = parents[node]
        keys_K = torch.tensor([*reversed(ancestors), *range(start, stop)], device=device)
        queries = nodes_N[start:stop, None]
        visible = (keys_K <= queries) & (queries < ends_N[keys_K])
        blocks.append(Block(start, stop, keys_K, visible))
    return tuple(blocks)

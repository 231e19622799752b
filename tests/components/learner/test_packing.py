"""Tree packing: the layout by hand, and equality with computing every sample on its own."""

import random

import pytest
import torch

from components.learner.head import PickLogprobs
from components.learner.packing import BLOCK, pack


def test_layout_of_a_small_tree():
    """Sorted, the sequences are [1,2,3] and [1,2,4,5]: nodes 1,2,3,4,5 at depths 0,1,2,2,3; 4 hangs under 2."""
    (tree,) = pack([[1, 2, 4, 5], [1, 2, 3]], 100)
    assert tree.samples == (1, 0)
    assert tree.input_ids_N.tolist() == [1, 2, 3, 4, 5]
    assert tree.position_ids_N.tolist() == [0, 1, 2, 2, 3]
    assert [path.tolist() for path in tree.nodes] == [[0, 1, 2], [0, 1, 3, 4]]
    (block,) = tree.blocks
    assert block.visible_QK.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]


def test_a_sample_that_is_a_prefix_of_another_costs_nothing():
    (tree,) = pack([[1, 2], [1, 2, 3], [1, 2, 3]], 100)
    assert tree.input_ids_N.tolist() == [1, 2, 3]


def test_cuts_fall_where_least_is_computed_twice():
    """Two tasks of two rollouts, prompts of 40, completions of 10: 60 nodes each, so a bound of 100 gives one pack per
    task. Cutting after the third rollout (60 + 50 > 100) is not allowed; after the first would compute 50 + 60 + 50."""
    prompts = [[1] * 40, [2] * 40]
    tails = [[7] * 10, [8] * 10]
    packs = pack([prompt + tail for prompt in prompts for tail in tails], 100)
    assert [len(tree.input_ids_N) for tree in packs] == [60, 60]


def test_workers_get_equal_shares():
    """8 rows of 100 own tokens behind 200 common ones: 1000 nodes in one pack, 600 and 600 for two workers, which
    together compute the common part twice."""
    rows = [[0] * 200 + [index] * 100 for index in range(1, 9)]
    sizes = [[len(tree.input_ids_N) for tree in pack(rows, 2048, workers)] for workers in (1, 2)]
    assert sizes == [[1000], [600, 600]]


def test_one_sample_for_many_workers_is_one_pack():
    assert len(pack([[1, 2, 3]], 100, 4)) == 1


def test_every_sample_is_in_exactly_one_pack_within_the_bound():
    rng = random.Random(0)
    sequences = [[rng.randrange(3) for _ in range(rng.randrange(1, 40))] for _ in range(50)]
    packs = pack(sequences, 60)
    assert sorted(place for tree in packs for place in tree.samples) == list(range(50))
    assert all(len(tree.input_ids_N) <= 60 for tree in packs)
    for tree in packs:
        for place, path in zip(tree.samples, tree.nodes, strict=True):
            assert tree.input_ids_N[path].tolist() == sequences[place]
            assert tree.position_ids_N[path].tolist() == list(range(len(path)))


def test_a_sample_over_the_bound_gets_its_own_pack():
    packs = pack([[1] * 50, [2] * 5], 20)
    assert [len(tree.input_ids_N) for tree in packs] == [50, 5]


def conversations():
    """Three tasks with a common start, branching twice, longer than one attention block."""
    rng = random.Random(3)

    def some(num):
        return [rng.randrange(256) for _ in range(num)]

    start = some(BLOCK - 20)
    tasks = [start + some(30) for _ in range(2)] + [some(25)]
    firsts = [task + some(15) for task in tasks for _ in range(2)]
    return [first + some(rng.randrange(1, 40)) for first in firsts for _ in range(2)]


def tree_logprobs(policy, sequences, max_tokens):
    """Log-probability of each sequence's tokens after the first, through packs."""
    found = {}
    for tree in pack(sequences, max_tokens):
        hidden = policy.hidden(tree)
        for place, path in zip(tree.samples, tree.nodes, strict=True):
            rows = torch.arange(len(path) - 1)
            logprobs, _ = PickLogprobs.apply(
                hidden[path[:-1]], policy.head_weight, rows, tree.input_ids_N[path[1:]]
            )
            found[place] = logprobs
    return [found[place] for place in range(len(sequences))]


def row_logprobs(model, sequence):
    """The same by the library's own forward pass and attention, one row."""
    ids = torch.tensor(sequence)
    logits = model(ids[None]).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]


@pytest.mark.parametrize("max_tokens", [10_000, 300, 1])
def test_packs_equal_rows(policy, max_tokens):
    """float32 sums in another order: 1e-5 is about a hundred roundings at logits near 10."""
    sequences = conversations()
    packed = tree_logprobs(policy, sequences, max_tokens)
    policy.model.set_attn_implementation("eager")
    for sequence, logprobs in zip(sequences, packed, strict=True):
        torch.testing.assert_close(
            logprobs, row_logprobs(policy.model, sequence), atol=1e-5, rtol=1e-5
        )


def test_gradients_of_packs_equal_those_of_rows(policy):
    """Each log-probability gets another weight, so an error at one place cannot hide behind another."""
    sequences = conversations()
    weights = [torch.linspace(-1, 1, len(sequence) - 1) for sequence in sequences]

    def gradients(all_logprobs):
        total = sum((w * each).sum() for w, each in zip(weights, all_logprobs, strict=True))
        return torch.autograd.grad(total, list(policy.trainable().values()))

    packed = gradients(tree_logprobs(policy, sequences, 10_000))
    policy.model.set_attn_implementation("eager")
    rows = gradients([row_logprobs(policy.model, sequence) for sequence in sequences])
    for name, left, right in zip(policy.trainable(), packed, rows, strict=True):
        scale = right.abs().max()
        torch.testing.assert_close(left / scale, right / scale, atol=1e-5, rtol=0, msg=name)


def test_sharing_computes_the_prompt_once():
    """4 rollouts of 12 + 5 tokens cost 12 + 4 * 5 = 32 nodes, not 68 (first sampled tokens all differ here)."""
    rows = [[0] * 12 + [index] * 5 for index in range(1, 5)]
    assert sum(len(tree.input_ids_N) for tree in pack(rows, 1000)) == 32

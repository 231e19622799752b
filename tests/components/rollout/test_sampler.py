"""The sampler draws from the softmax it reports, and its random numbers depend on seed and index alone."""

import math

import pytest
import torch
from scipy.stats import chisquare

from components.rollout._sampler import BLOCK, Draw, Sampler, uniform


def draw(logits: torch.Tensor, temperatures: list[float], uniforms: list[float]) -> Draw:
    return Sampler().draw(logits, temperatures, uniforms)


def test_uniform_numbers_depend_on_seed_and_index_only() -> None:
    first = [uniform(seed, index) for seed in range(20) for index in range(20)]
    again = [uniform(seed, index) for seed in range(20) for index in range(20)]
    assert first == again
    assert len(set(first)) == 400
    assert all(0 <= value < 1 for value in first)
    # The mean of 400 uniform numbers has standard deviation sqrt(1/12/400) = 0.0144; five of those are 0.072.
    assert abs(sum(first) / 400 - 0.5) < 0.072


def test_uniform_takes_any_integer() -> None:
    assert len({uniform(seed, 0) for seed in (0, -1, 2**70, 2**70 + 1)}) == 4


def test_drawn_frequencies_fit_the_softmax() -> None:
    """5,000 draws of 5 tokens against exp(z / T) / Z with T = 2: chi-square at a fixed seed, p above 1%."""
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, 3.0])
    count, temperature = 5000, 2.0
    drawn = draw(
        logits.expand(count, -1),
        [temperature] * count,
        [uniform(7, index) for index in range(count)],
    )
    weights = [math.exp(value / temperature) for value in logits.tolist()]
    expected = [count * weight / sum(weights) for weight in weights]
    found = [drawn.tokens_B.count(token) for token in range(5)]
    assert chisquare(found, expected).pvalue > 0.01


def test_a_vocabulary_over_several_blocks_is_searched_right() -> None:
    """With all logits equal, V tokens and u in [k/V, (k+1)/V), the token is k."""
    vocabulary = 2 * BLOCK + 37
    tokens = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, vocabulary - 1]
    shares = [(token + 0.5) / vocabulary for token in tokens]
    drawn = draw(torch.zeros(len(tokens), vocabulary), [1.0] * len(tokens), shares)
    assert drawn.tokens_B == tokens
    assert drawn.logprobs_B == pytest.approx([-math.log(vocabulary)] * len(tokens), abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.5, 1 - 2**-53])
def test_a_token_without_mass_is_never_drawn(share: float) -> None:
    """Only token 300 has mass; the first block, the rest of its own and the padding have none."""
    logits = torch.full((1, 520), -1e9)
    logits[0, 300] = 4.0
    drawn = draw(logits, [1.0], [share])
    assert drawn.tokens_B == [300]
    assert drawn.logprobs_B == [0.0]


def test_logprobs_are_those_of_the_tempered_softmax() -> None:
    logits = torch.randn(6, 700, generator=torch.Generator().manual_seed(0)) * 4
    temperatures = [1.0, 0.5, 2.0, 0.7, 1.3, 1.0]
    drawn = draw(logits, temperatures, [uniform(row, 0) for row in range(6)])
    for row, temperature in enumerate(temperatures):
        expected = torch.log_softmax(logits[row].double() / temperature, -1)[drawn.tokens_B[row]]
        # Dividing in float32 rounds a logit of up to 16 / 0.5 by 32 x 6e-8.
        assert drawn.logprobs_B[row] == pytest.approx(float(expected), abs=1e-5)


def test_greedy_takes_the_top_token_and_says_its_logprob_at_temperature_one() -> None:
    """p = e^2 / (e^2 + e^1 + e^0) for the top of the logits 1, 2, 0."""
    drawn = draw(torch.tensor([[1.0, 2.0, 0.0]]), [0.0], [0.999])
    assert drawn.tokens_B == [1]
    assert drawn.logprobs_B == pytest.approx(
        [2 - math.log(math.exp(2) + math.exp(1) + 1)], abs=1e-6
    )


def test_rows_that_are_not_numbers_are_marked_and_spoil_no_other() -> None:
    nan, infinite = float("nan"), float("inf")
    logits = torch.tensor([[0.0, nan, 0.0], [0.0, infinite, 0.0], [-infinite] * 3, [0.0, 5.0, 0.0]])
    drawn = draw(logits, [1.0, 1.0, 1.0, 0.0], [0.5] * 4)
    assert drawn.is_finite_B == [False, False, False, True]
    assert drawn.tokens_B[3] == 1


def test_one_sampler_serves_batches_of_any_size_and_leaves_the_logits_alone() -> None:
    sampler = Sampler()
    for rows in (4, 1, 6):
        logits = torch.randn(rows, 300, generator=torch.Generator().manual_seed(rows))
        before = logits.clone()
        shares = [uniform(rows, row) for row in range(rows)]
        assert sampler.draw(logits, [1.0] * rows, shares) == draw(logits, [1.0] * rows, shares)
        assert torch.equal(logits, before)


def test_the_end_of_the_mass_is_found_although_its_sums_are_rounded() -> None:
    """A block's own sum and its running sum differ in the last bits; a share just below one must still stop at mass."""
    rows = 200
    logits = torch.randn(rows, 300, generator=torch.Generator().manual_seed(0))
    logits[:, 280:] = -1e9
    drawn = draw(logits, [1.0] * rows, [1 - 2**-53] * rows)
    assert set(drawn.tokens_B) == {279}

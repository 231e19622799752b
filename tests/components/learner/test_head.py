"""Log-probabilities of chosen tokens, against the plain formula and its automatic gradient."""

import math

import torch

from components.learner.head import CHUNK, PickLogprobs


def data(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 6, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(11, 6, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, weight, generator


def test_values_and_gradients_across_chunks_and_shared_rows():
    rows = CHUNK + 3
    hidden, weight, generator = data(rows)
    at = torch.randint(rows, (900,), generator=generator).sort().values
    ids = torch.randint(11, (900,), generator=generator)
    scale = torch.randn(900, generator=generator, dtype=torch.float32)
    logprobs, entropy = PickLogprobs.apply(hidden, weight, at, ids)
    plain = (hidden @ weight.T).log_softmax(-1)
    # Sums run in float32 inside, the reference in float64.
    torch.testing.assert_close(logprobs.double(), plain[at, ids], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        entropy.double(), -(plain.exp() * plain).sum(-1), atol=1e-5, rtol=1e-5
    )
    mine = torch.autograd.grad((scale * logprobs).sum(), (hidden, weight))
    theirs = torch.autograd.grad((scale.double() * plain[at, ids]).sum(), (hidden, weight))
    for left, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_uniform_rows():
    """Hidden state zero: every one of 11 tokens has log-probability -ln 11, and the entropy is ln 11."""
    _, weight, _ = data(1)
    logprobs, entropy = PickLogprobs.apply(
        torch.zeros(1, 6, dtype=torch.float64), weight, torch.tensor([0]), torch.tensor([4])
    )
    assert math.isclose(logprobs[0].item(), -math.log(11), rel_tol=1e-6)
    assert math.isclose(entropy[0].item(), math.log(11), rel_tol=1e-6)


def test_no_rows_give_a_zero_gradient():
    hidden, weight, _ = data(0)
    logprobs, _ = PickLogprobs.apply(
        hidden, weight, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    )
    (grad,) = torch.autograd.grad(logprobs.sum(), weight)
    assert not grad.any()

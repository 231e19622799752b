"""Drawing tokens: softmax, sum, search, with one uniform number per (seed, token index).

    p_v = exp(z_v / T) / Z        token = the first v whose cumulative probability exceeds u

Temperature 0 takes the most likely token. The log-probability is that of the token under p, the distribution it was
drawn from; for a greedy token, whose own distribution is a point, it is taken at temperature 1, so that it still says
something about the model.

The search has two levels, blocks of 256 tokens and then one block, with running sums in float64: a running sum over a
whole vocabulary in float32 would bend the probabilities of late tokens, and would be slower.

Our choice: the uniform number is a hash of seed and token index, not the next output of a generator, so a request's
numbers do not depend on which other requests are in the batch, on any device or in any process.

Shapes: B rows, V vocabulary, N blocks.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 256


class Draw(NamedTuple):
    """One token per row; a row whose logits are not numbers has `is_finite` False and no meaning else."""

    tokens_B: list[int]
    logprobs_B: list[float]
    is_finite_B: list[bool]


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on these two alone."""
    data = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(data, "big") >> 11) * 2.0**-53


class Sampler:
    """Draws rows of tokens; keeps one block for their probabilities, since a fresh one costs page faults every step."""

    def __init__(self) -> None:
        self._block = torch.empty(0)

    def draw(
        self, logits_BV: Tensor, temperatures_B: Sequence[float], uniforms_B: Sequence[float]
    ) -> Draw:
        """One token per row of logits."""
        if self._block.numel() < logits_BV.numel() or self._block.device != logits_BV.device:
            self._block = torch.empty(logits_BV.numel(), device=logits_BV.device)
        scratch_BV = self._block[: logits_BV.numel()].view(logits_BV.shape)
        return _draw(logits_BV, temperatures_B, uniforms_B, scratch_BV)


def _draw(
    logits_BV: Tensor,
    temperatures_B: Sequence[float],
    uniforms_B: Sequence[float],
    scratch_BV: Tensor,
) -> Draw:
    device = logits_BV.device
    is_greedy_B = torch.tensor([value == 0 for value in temperatures_B], device=device)
    scale_B1 = torch.tensor([[value or 1.0] for value in temperatures_B], device=device)
    scaled_BV = torch.div(logits_BV, scale_B1, out=scratch_BV)
    top_B1, argmax_B1 = scaled_BV.max(dim=-1, keepdim=True)
    is_finite_B = torch.isfinite(top_B1).flatten()
    masses_BV = scaled_BV.sub_(top_B1).exp_()
    if not bool(is_finite_B.all()):
        masses_BV[~is_finite_B] = 1.0
    target_B = torch.tensor(uniforms_B, dtype=torch.float64, device=device)
    sampled_B, total_B = _search(masses_BV, target_B)
    tokens_B = torch.where(is_greedy_B, argmax_B1.flatten(), sampled_B)
    chosen_B = masses_BV.gather(1, tokens_B[:, None]).flatten().double()
    logprobs_B = chosen_B.log() - total_B.log()
    return Draw(tokens_B.tolist(), logprobs_B.tolist(), is_finite_B.tolist())


def _search(masses_BV: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Token per row at the given share of its mass, and the row's whole mass."""
    rows, vocabulary = masses_BV.shape
    if padding := -vocabulary % BLOCK:
        masses_BV = torch.nn.functional.pad(masses_BV, (0, padding))
    masses_BNb = masses_BV.view(rows, -1, BLOCK)
    ends_BN = masses_BNb.sum(dim=-1).double().cumsum(dim=-1)
    total_B = ends_BN[:, -1]
    target_B = uniforms_B * total_B
    block_B = _first_above(ends_BN, target_B)
    every = torch.arange(rows, device=masses_BV.device)
    before_B = torch.where(block_B > 0, ends_BN[every, (block_B - 1).clamp(min=0)], 0.0)
    ends_Bb = masses_BNb[every, block_B].double().cumsum(dim=-1)
    return block_B * BLOCK + _first_above(ends_Bb, target_B - before_B), total_B


def _first_above(ends_BX: Tensor, target_B: Tensor) -> Tensor:
    """First entry whose running sum exceeds the target, but never one after the last that has mass."""
    found_B1 = torch.searchsorted(ends_BX, target_B[:, None], right=True)
    last_B1 = torch.searchsorted(ends_BX, ends_BX[:, -1:].contiguous(), right=False)
    return torch.minimum(found_B1, last_B1).flatten()

"""Log-probabilities of chosen tokens, with logits only for the positions that are asked for.

    logprob_e = logit[row_e, id_e] - logsumexp(logit[row_e, :])

Several entries may ask one row: rollouts that part at a node, or a teacher's most likely tokens. Logits are formed once
per row, in chunks, kept in the dtype of the model until the backward pass and summed in float32. The entropy of each
row comes along without a gradient.
Shapes: R rows of hidden states, D hidden size, V vocabulary, E entries, ordered by row.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 256
"""Rows whose float32 logits exist at one time."""


class PickLogprobs(torch.autograd.Function):
    """(hidden_RD, weight_VD, rows_E ascending, ids_E) -> logprobs_E, entropy_R."""

    @staticmethod
    def forward(
        ctx: Any, hidden_RD: Tensor, weight_VD: Tensor, rows_E: Tensor, ids_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        kept: list[Tensor] = []
        picked: list[Tensor] = []
        entropies: list[Tensor] = []
        bounds = _bounds(hidden_RD, rows_E)
        for start, stop, first, last in bounds:
            logits = hidden_RD[start:stop] @ weight_VD.to(hidden_RD.dtype).T
            kept.append(logits)
            logprobs = logits.float().log_softmax(-1)
            picked.append(logprobs[rows_E[first:last] - start, ids_E[first:last]])
            entropies.append(-(logprobs.exp() * logprobs).sum(-1))
        ctx.save_for_backward(hidden_RD, weight_VD, rows_E, ids_E, *kept)
        ctx.bounds = bounds
        if not bounds:
            return hidden_RD.new_zeros(0, dtype=torch.float32), hidden_RD.new_zeros(0)
        entropy_R = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_R)
        return torch.cat(picked), entropy_R

    @staticmethod
    def backward(ctx: Any, grad_E: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden_RD, weight_VD, rows_E, ids_E, *kept = ctx.saved_tensors
        weight = weight_VD.to(hidden_RD.dtype)
        grad_hidden = torch.zeros_like(hidden_RD)
        wants_weight = ctx.needs_input_grad[1]
        grad_weight = torch.zeros_like(weight_VD) if wants_weight else None
        for (start, stop, first, last), logits in zip(ctx.bounds, kept, strict=True):
            rows, ids, grads = rows_E[first:last] - start, ids_E[first:last], grad_E[first:last]
            total_R = grads.new_zeros(stop - start).index_add_(0, rows, grads)
            grad_logits = logits.float().softmax(-1).mul_(-total_R[:, None])
            grad_logits.index_put_((rows, ids), grads, accumulate=True)
            grad_logits = grad_logits.to(hidden_RD.dtype)
            grad_hidden[start:stop] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight += (grad_logits.T @ hidden_RD[start:stop]).to(grad_weight.dtype)
        return grad_hidden, grad_weight, None, None


def _bounds(hidden_RD: Tensor, rows_E: Tensor) -> list[tuple[int, int, int, int]]:
    """Per chunk of rows: first and last row, first and last entry, half-open."""
    starts = list(range(0, hidden_RD.shape[0], CHUNK))
    stops = [min(start + CHUNK, hidden_RD.shape[0]) for start in starts]
    places = torch.searchsorted(rows_E, rows_E.new_tensor([*starts, hidden_RD.shape[0]])).tolist()
    return list(zip(starts, stops, places[:-1], places[1:], strict=True))

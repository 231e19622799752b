"""Attention over a tree of tokens, block of queries by block of queries.

    out_i = sum_j softmax_j(scale * q_i . k_j) v_j          over the ancestors j of node i, and i itself

Each block sees only the keys that can matter to it (`packing.py`). Query heads that share a key head are stacked, so
nothing is repeated. The backward pass recomputes the weights instead of keeping them: memory grows with the nodes, not
with nodes x keys. Scores are formed in the dtype of the model, as the library's eager attention does.

Used as an attention function of the transformers library: `ATTENTION` is the name to load a model with, and the blocks
travel as the keyword argument `tree_blocks` of the model's forward call.
Shapes: H query heads, A key heads, N nodes, D head size, K keys of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION = "nightshift_tree"


@dataclass(frozen=True, slots=True)
class Block:
    """Query nodes [start, stop) and the keys they may look at."""

    start: int
    stop: int
    keys_K: Tensor
    visible_QK: Tensor
    """True where the key is an ancestor of the query, or the query itself."""


def register() -> None:
    """Make `ATTENTION` known to the library; repeating is harmless."""
    AttentionInterface.register(ATTENTION, _attend)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any
) -> tuple[Tensor, None]:
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    heads = (each[0].to(dtype) for each in (query, key, value))
    out = TreeAttention.apply(*heads, options["tree_blocks"], scale)
    return out.transpose(0, 1)[None], None


def _stacked(heads_HND: Tensor, num_groups: int) -> Tensor:
    """Query heads that share a key head, one below the other: [A, groups * N, D]."""
    return heads_HND.reshape(heads_HND.shape[0] // num_groups, -1, heads_HND.shape[-1])


class TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_HND: Tensor, k_AND: Tensor, v_AND: Tensor, blocks: Sequence[Block], scale: float
    ) -> Tensor:
        out = torch.empty_like(q_HND)
        groups = q_HND.shape[0] // k_AND.shape[0]
        for block in blocks:
            weights, _, _ = _weights(q_HND, k_AND, block, scale)
            values = v_AND.index_select(1, block.keys_K)
            part = torch.bmm(weights, values)
            out[:, block.start : block.stop] = part.view(
                q_HND.shape[0], block.stop - block.start, -1
            )
        ctx.save_for_backward(q_HND, k_AND, v_AND)
        ctx.blocks, ctx.scale, ctx.groups = blocks, scale, groups
        return out

    @staticmethod
    def backward(ctx: Any, grad_HND: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_HND, k_AND, v_AND = ctx.saved_tensors
        grad_q = torch.empty_like(q_HND)
        # Keys of a shared prefix collect from many blocks: the sums are kept in float32.
        grad_k = torch.zeros_like(k_AND, dtype=torch.float32)
        grad_v = torch.zeros_like(v_AND, dtype=torch.float32)
        for block in ctx.blocks:
            weights, queries, keys = _weights(q_HND, k_AND, block, ctx.scale)
            values = v_AND.index_select(1, block.keys_K)
            grad = _stacked(grad_HND[:, block.start : block.stop], ctx.groups)
            grad_v.index_add_(1, block.keys_K, torch.bmm(weights.mT, grad).float())
            grad_weights = torch.bmm(grad, values.mT)
            grad_scores = torch.ops.aten._softmax_backward_data(
                grad_weights, weights, -1, weights.dtype
            )
            part = torch.bmm(grad_scores, keys).mul_(ctx.scale)
            grad_q[:, block.start : block.stop] = part.view(
                q_HND.shape[0], block.stop - block.start, -1
            )
            grad_keys = torch.bmm(grad_scores.mT, queries).float().mul_(ctx.scale)
            grad_k.index_add_(1, block.keys_K, grad_keys)
        return grad_q, grad_k.to(k_AND.dtype), grad_v.to(v_AND.dtype), None, None


def _weights(
    q_HND: Tensor, k_AND: Tensor, block: Block, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    groups = q_HND.shape[0] // k_AND.shape[0]
    queries = _stacked(q_HND[:, block.start : block.stop], groups)
    keys = k_AND.index_select(1, block.keys_K)
    hidden_QK = torch.zeros(block.visible_QK.shape, dtype=q_HND.dtype, device=q_HND.device)
    hidden_QK.masked_fill_(~block.visible_QK, float("-inf"))
    scores = torch.baddbmm(hidden_QK.repeat(groups, 1), queries, keys.mT, alpha=scale)
    return scores.softmax(-1), queries, keys

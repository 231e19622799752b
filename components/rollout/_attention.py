"""Keys and values of many sequences in one preallocated block, and attention over it.

One step runs tokens of several sequences, laid end to end as one row of N tokens. Each token belongs to a slot (one
sequence) and has a position in it. Its key and value are written in place; then every token attends to the positions
of its own slot up to its own.

    one new token of a sequence      all such tokens at once; the first positions, where all these sequences hold the
                                     same tokens (a system prompt), are read from one of them, and both parts joined
    several new tokens (a prompt)    one sequence at a time, under a triangular mask

Keys and values are kept in the dtype of the model; scores and sums are float32 inside the library's kernel. Positions
come before head widths, so a short sequence touches few pages of a long slot.

    joined    o = o_shared + sigmoid(z_own - z_shared) (o_own - o_shared),   z the log of the sum of exponentials

The block starts as zeros because a masked position still takes part as 0 x value, and 0 x NaN is NaN.

Source: reading once what sequences share follows Hydragen, arXiv 2402.05099, section 3.

Shapes: L layer, S slot, K key-value head, G query heads per key-value head, D head width, C positions of a slot,
N tokens of the step, W lanes of the batched call, T positions of the longest context among them, n tokens of a prompt,
B batch, Q queries.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from components.errors import ConfigError

ATTENTION = "nightshift_slots"
"""Name under which the library finds `attend`."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    num_layers: int
    num_slots: int
    num_heads: int
    head_width: int
    slot_tokens: int
    dtype: torch.dtype


class KeyValueCache:
    """Keys and values of all slots; memory that no token has touched is not resident."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        lead = (shape.num_layers, shape.num_slots, shape.num_heads)
        self.keys_LSKCD = _zeros((*lead, shape.slot_tokens, shape.head_width), shape.dtype, device)
        self.values_LSKCD = _zeros(
            (*lead, shape.slot_tokens, shape.head_width), shape.dtype, device
        )

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Give `target` the positions from `start` to before `stop` of `source`."""
        for block_LSKCD in (self.keys_LSKCD, self.values_LSKCD):
            block_LSKCD[:, target, :, start:stop] = block_LSKCD[:, source, :, start:stop]

    def swap(self, one: int, other: int, start: int, stop: int) -> None:
        """Exchange the positions from `start` to before `stop` of two slots."""
        for block_LSKCD in (self.keys_LSKCD, self.values_LSKCD):
            held = block_LSKCD[:, one, :, start:stop].clone()
            block_LSKCD[:, one, :, start:stop] = block_LSKCD[:, other, :, start:stop]
            block_LSKCD[:, other, :, start:stop] = held

    def clear(self, slot: int) -> None:
        """Zero a slot, so that nothing non-finite is left behind."""
        self.keys_LSKCD[:, slot] = 0
        self.values_LSKCD[:, slot] = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # torch.zeros writes every page; numpy takes pages that the system zeroes on first touch.
    pages = np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).to(device)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive new tokens of one slot."""

    slot: int
    position: int
    """Position of the first of them."""
    count: int


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A run of several tokens, as a range of the step."""

    start: int
    stop: int
    slot: int
    context: int
    mask_nT: Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """Where the tokens of one forward pass go, prepared once and used by every layer."""

    cache: KeyValueCache
    slots_N: Tensor
    positions_N: Tensor
    single_B: Tensor
    """Which of the N tokens are alone in their run."""
    lanes: slice
    """Slots that the batched call runs over."""
    lane_B: Tensor
    """Lane of each single token."""
    mask_W11T: Tensor
    """Over the positions after the shared ones."""
    num_shared: int
    """First positions at which all single tokens' slots hold the same tokens and keys."""
    shared_slot: int
    """One of these slots."""
    prompts: tuple[_Prompt, ...]
    last_R: Tensor
    """Index of the last token of each run, in the order of the runs."""


def plan(cache: KeyValueCache, runs: list[Run], num_shared: int = 0) -> Step:
    """Lay the runs end to end; every run has its own slot.

    `num_shared`: positions from the first on that all slots of single tokens have computed for the same tokens.
    """
    device = cache.keys_LSKCD.device
    counts = torch.tensor([run.count for run in runs])
    starts = torch.cumsum(counts, 0) - counts
    slots = torch.tensor([run.slot for run in runs])
    first = torch.tensor([run.position for run in runs])
    single = counts == 1
    lanes, lane_B, mask = _lanes(slots[single], first[single] + 1 - num_shared)
    within = torch.arange(int(counts.sum())) - torch.repeat_interleave(starts, counts)
    return Step(
        cache=cache,
        slots_N=torch.repeat_interleave(slots, counts).to(device),
        positions_N=(torch.repeat_interleave(first, counts) + within).to(device),
        single_B=starts[single].to(device),
        lanes=lanes,
        lane_B=lane_B.to(device),
        mask_W11T=mask.to(device, cache.keys_LSKCD.dtype),
        num_shared=num_shared,
        shared_slot=int(slots[single][0]) if num_shared else 0,
        prompts=tuple(
            _prompt(start, run, cache.keys_LSKCD)
            for start, run in zip(starts.tolist(), runs, strict=True)
            if run.count > 1
        ),
        last_R=(starts + counts - 1).to(device),
    )


def _prompt(start: int, run: Run, like: Tensor) -> _Prompt:
    context = run.position + run.count
    mask = like.new_full((run.count, context), float("-inf")).triu_(diagonal=run.position + 1)
    return _Prompt(start, start + run.count, run.slot, context, mask)


def _lanes(slots_B: Tensor, contexts_B: Tensor) -> tuple[slice, Tensor, Tensor]:
    """The range of slots that holds the wanted ones: read in place, a copy would cost more than a few idle lanes.

    `contexts_B`: positions that each attends to, without the shared ones.
    """
    if len(slots_B) == 0:
        return slice(0, 0), slots_B, torch.zeros(0, 1, 1, 1)
    low, high = int(slots_B.min()), int(slots_B.max()) + 1
    # A lane nobody asked for sees one position: an all-masked softmax would be NaN.
    contexts_W = torch.ones(high - low, dtype=torch.long)
    contexts_W[slots_B - low] = contexts_B
    hidden = torch.arange(int(contexts_W.max())) >= contexts_W[:, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    return slice(low, high), slots_B - low, mask[:, None, None, :]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    nightshift_step: Step | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The library's attention hook: query [1, K x G, N, D], key and value [1, K, N, D] -> [1, N, K x G, D]."""
    if nightshift_step is None:
        raise ConfigError(f"the attention {ATTENTION!r} works only inside TransformersEngine")
    refuse_variants(module, kwargs)
    step = nightshift_step
    layer = getattr(module, "layer_idx")  # noqa: B009  (nn.Module types unknown attributes as Module)
    keys, values = step.cache.keys_LSKCD[layer], step.cache.values_LSKCD[layer]
    dtype = keys.dtype
    keys[step.slots_N, :, step.positions_N] = key[0].transpose(0, 1).to(dtype)
    values[step.slots_N, :, step.positions_N] = value[0].transpose(0, 1).to(dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query_NHD = query[0].transpose(0, 1).to(dtype)
    out_NHD = torch.empty_like(query_NHD)
    if len(step.single_B):
        out_NHD[step.single_B] = _attend_single(step, query_NHD[step.single_B], keys, values, scale)
    for prompt in step.prompts:
        out_NHD[prompt.start : prompt.stop] = _attend_prompt(
            prompt, query_NHD[prompt.start : prompt.stop], keys, values, scale
        )
    return out_NHD.to(query.dtype)[None], None


def _attend_single(
    step: Step, query_BHD: Tensor, keys: Tensor, values: Tensor, scale: float
) -> Tensor:
    shared = step.num_shared
    own = slice(shared, shared + step.mask_W11T.shape[-1])
    keys_WKTD, values_WKTD = keys[step.lanes, :, own], values[step.lanes, :, own]
    lanes, heads = keys_WKTD.shape[:2]
    query_WHD = query_BHD.new_zeros(lanes, *query_BHD.shape[1:])
    query_WHD[step.lane_B] = query_BHD
    query_WKGD = query_WHD.view(lanes, heads, -1, query_BHD.shape[-1])
    out_WKGD, z_WKG = _attention(query_WKGD, keys_WKTD, values_WKTD, scale, step.mask_W11T)
    if shared:
        query_KXD = query_WKGD.transpose(0, 1).flatten(1, 2)
        keys_1KPD, values_1KPD = (
            each[step.shared_slot, :, :shared][None] for each in (keys, values)
        )
        out_1KXD, z_1KX = _attention(query_KXD[None], keys_1KPD, values_1KPD, scale)
        shared_WKGD = out_1KXD[0].unflatten(1, (lanes, -1)).transpose(0, 1).float()
        share_WKG = torch.sigmoid(z_WKG - z_1KX[0].unflatten(1, (lanes, -1)).transpose(0, 1))
        out_WKGD = torch.lerp(shared_WKGD, out_WKGD.float(), share_WKG[..., None])
    return out_WKGD.reshape(query_WHD.shape)[step.lane_B].to(query_BHD.dtype)


def _attend_prompt(
    prompt: _Prompt, query_nHD: Tensor, keys: Tensor, values: Tensor, scale: float
) -> Tensor:
    keys_KTD, values_KTD = (each[prompt.slot, :, : prompt.context] for each in (keys, values))
    # Query heads of one key-value head take the place of a batch: all of them read the same keys and one mask.
    query_GKnD = query_nHD.unflatten(1, (keys_KTD.shape[0], -1)).permute(2, 1, 0, 3)
    groups = query_GKnD.shape[0]
    out_GKnD, _ = _attention(
        query_GKnD,
        keys_KTD.expand(groups, -1, -1, -1),
        values_KTD.expand(groups, -1, -1, -1),
        scale,
        prompt.mask_nT,
    )
    return out_GKnD.permute(2, 1, 0, 3).flatten(1, 2)


def _attention(
    query_BKQD: Tensor,
    keys_BKTD: Tensor,
    values_BKTD: Tensor,
    scale: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention and the float32 logarithm of each query's sum of exponentials: [B, K, Q, D] and [B, K, Q].

    The library's public call does not give the second, so its CPU kernel is called by name.
    """
    if mask is not None:
        batch, _, num_queries, _ = query_BKQD.shape
        mask = mask.expand(batch, 1, num_queries, keys_BKTD.shape[2])
    if query_BKQD.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query_BKQD, keys_BKTD, values_BKTD, attn_mask=mask, scale=scale
        )
    scores = (query_BKQD @ keys_BKTD.mT).float() * scale
    scores = scores if mask is None else scores + mask
    weights = torch.softmax(scores, dim=-1).to(values_BKTD.dtype)
    return weights @ values_BKTD, scores.logsumexp(dim=-1)


def refuse_variants(module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Attention that this file does not compute stops the model, never bends it."""
    for name in ("sliding_window", "softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise ConfigError(
                f"{type(module).__name__} asks for attention with {name}={kwargs[name]!r}, expected "
                "plain causal attention; sample this model with the vllm engine"
            )

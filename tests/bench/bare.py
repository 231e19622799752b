"""The limit of the learner benchmark: forward, backward and AdamW as a plain loop, nothing else.

    loss = - mean over all completion tokens of  A * pi / sg[pi]

Rank-r adapters on every linear layer, as ours; logits only where a completion token is predicted. No packing, no checks,
no metrics, no clipping. Two layouts:

    tree     one row per prompt: the prompt once, then its completions side by side, each seeing the prompt and itself
    padded   one row per completion, prompt included: what a trainer without prefix sharing computes

Shapes: P prompts, G completions of each, N nodes of one tree, T tokens of one row, D hidden size, R rank.
"""

import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from tests.bench.workload import Workload, advantage, load

LEARNING_RATE = 1e-4


class PlainLora(nn.Module):
    """A frozen linear layer plus the product of two thin float32 matrices, computed in the layer's dtype."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        low = inputs @ self.down.to(inputs.dtype).T
        return self.base(inputs) + (low @ self.up.to(inputs.dtype).T) * self.scale


def make_model(workload: Workload, variant: str) -> Any:
    """The model with fresh adapters; only they are trained."""
    # Measured on the standard machine: with a mask, `eager` is the faster of the two; without one, `sdpa`.
    kind = "eager" if variant == "tree" else "sdpa"
    dtype = getattr(torch, workload.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(
        workload.model_dir, dtype=dtype, attn_implementation=kind
    )
    model.requires_grad_(False).eval()
    head = model.get_output_embeddings()
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module is not head:
            model.set_submodule(path, PlainLora(module, workload.rank, workload.alpha))
    return model


class Batch(NamedTuple):
    """The tokens of one step in one of the layouts."""

    ids: Tensor
    positions: Tensor
    visible: Tensor | None
    """True where a token may look; None is plain causal."""
    rows: Tensor
    """Per row of `ids`: the places that predict completion tokens."""
    targets: Tensor
    advantages: Tensor


def tree(workload: Workload) -> Batch:
    prompts_PT, completions_PGT = _tokens(workload)
    num, groups, length = completions_PGT.shape
    width = prompts_PT.shape[1]
    ids_PN = torch.cat([prompts_PT, completions_PGT.reshape(num, -1)], dim=1)
    nodes = ids_PN.shape[1]
    owner_N = torch.full((nodes,), -1)
    owner_N[width:] = torch.arange(groups).repeat_interleave(length)
    earlier = torch.ones(nodes, nodes, dtype=torch.bool).tril()
    visible = earlier & ((owner_N == -1) | (owner_N[:, None] == owner_N))
    after = torch.arange(width, width + length).repeat(groups)
    positions = torch.cat([torch.arange(width), after]).expand(num, -1)
    # The last prompt token predicts every first completion token; the others are predicted by the one before.
    rows = torch.arange(width - 1, nodes - 1)
    rows[torch.arange(groups) * length] = width - 1
    return Batch(ids_PN, positions, visible, rows, completions_PGT.flatten(), _advantages(workload))


def padded(workload: Workload) -> Batch:
    prompts_PT, completions_PGT = _tokens(workload)
    _, groups, length = completions_PGT.shape
    width = prompts_PT.shape[1]
    repeated = prompts_PT.repeat_interleave(groups, dim=0)
    ids = torch.cat([repeated, completions_PGT.flatten(0, 1)], dim=1)
    positions = torch.arange(width + length).expand(len(ids), -1)
    rows = torch.arange(width - 1, width + length - 1)
    return Batch(ids, positions, None, rows, completions_PGT.flatten(), _advantages(workload))


LAYOUTS = {"tree": tree, "padded": padded}


def _tokens(workload: Workload) -> tuple[Tensor, Tensor]:
    return torch.tensor(workload.prompts_P), torch.tensor(workload.completions_PG)


def _advantages(workload: Workload) -> Tensor:
    """One number per completion token, in the order of the targets."""
    groups, length = len(workload.completions_PG[0]), workload.completion_tokens
    one_prompt = torch.tensor([advantage(place) for place in range(groups)])
    return one_prompt.repeat_interleave(length).repeat(len(workload.prompts_P))


def loss_of(model: Any, batch: Batch) -> Tensor:
    """Forward pass and loss of one step."""
    mask = None
    if batch.visible is not None:
        mask = torch.zeros(batch.visible.shape, dtype=model.dtype)
        mask = mask.masked_fill_(~batch.visible, float("-inf"))
        mask = mask.expand(len(batch.ids), 1, -1, -1)
    hidden = model.base_model(
        input_ids=batch.ids, position_ids=batch.positions, attention_mask=mask, use_cache=False
    ).last_hidden_state
    chosen = hidden[:, batch.rows].flatten(0, 1)
    logits = model.get_output_embeddings()(chosen)
    logprobs = -functional.cross_entropy(logits.float(), batch.targets, reduction="none")
    ratio = (logprobs - logprobs.detach()).exp()
    return -(batch.advantages * ratio).mean()


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each counted step; the first is not counted."""
    workload = load(arguments["workload"])
    torch.set_num_threads(workload.threads)
    model = make_model(workload, arguments["variant"])
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    batch = LAYOUTS[arguments["variant"]](workload)
    seconds: list[float] = []
    for _ in range(workload.steps + 1):
        begun = time.perf_counter()
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begun)
    return {"seconds": seconds[1:], "model_tokens": batch.ids.numel()}

"""Low-rank adapters on every linear layer, in the file format of the peft library.

    y = x W' + s (x A') B'          s = alpha / rank, A random, B zero at the start

Source: arXiv 2106.09685. A and B are float32 parameters; the products run in the dtype of the frozen weight, which on a
CPU with bfloat16 arithmetic costs a third of doing them in float32. The frozen weight gets no gradient.
Shapes: _ND inputs, _NO outputs, R rank.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

PREFIX = "base_model.model."
"""What peft puts before a module's path."""


IS_OFF: ContextVar[bool] = ContextVar("adapters_are_off", default=False)
"""Whether adapters are left out; each thread has its own answer, because packs are computed side by side."""


class LoraLinear(nn.Module):
    """A frozen linear layer with a trainable low-rank addition."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        device = base.weight.device
        down = torch.empty(rank, base.in_features)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5), generator=generator)
        self.down = nn.Parameter(down.to(device))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=device))

    def forward(self, inputs: Tensor) -> Tensor:
        if IS_OFF.get():
            return self.base(inputs)
        return LoraProduct.apply(
            inputs, self.base.weight, self.base.bias, self.down, self.up, self.scale
        )

    def merged(self) -> nn.Linear:
        """A plain layer that computes the same; the sum is formed in float32 and rounded once."""
        weight = self.base.weight
        layer = nn.Linear(
            self.base.in_features,
            self.base.out_features,
            bias=self.base.bias is not None,
            device="meta",
        )
        total = torch.addmm(weight.float(), self.up, self.down, alpha=self.scale)
        layer.weight = nn.Parameter(total.detach().to(weight.dtype), requires_grad=False)
        if self.base.bias is not None:
            layer.bias = nn.Parameter(self.base.bias.detach().clone(), requires_grad=False)
        return layer


class LoraProduct(torch.autograd.Function):
    """The sum of both products; keeps the input and the low-rank product for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight_OD: Tensor,
        bias_O: Tensor | None,
        down_RD: Tensor,
        up_OR: Tensor,
        scale: float,
    ) -> Tensor:
        inputs_ND = inputs.reshape(-1, inputs.shape[-1])
        down, up = down_RD.to(weight_OD.dtype), up_OR.to(weight_OD.dtype)
        low_NR = inputs_ND @ down.T
        out_NO = nn.functional.linear(inputs_ND, weight_OD, bias_O)
        out_NO.addmm_(low_NR, up.T, alpha=scale)
        ctx.save_for_backward(inputs_ND, low_NR, weight_OD, down, up)
        ctx.scale = scale
        return out_NO.view(*inputs.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs_ND, low_NR, weight_OD, down_RD, up_OR = ctx.saved_tensors
        grad_NO = grad.reshape(-1, grad.shape[-1])
        grad_low_NR = (grad_NO @ up_OR).mul_(ctx.scale)
        grad_up = (grad_NO.T @ low_NR).float().mul_(ctx.scale)
        grad_down = (grad_low_NR.T @ inputs_ND).float()
        grad_inputs = None
        if ctx.needs_input_grad[0]:
            grad_inputs = (grad_NO @ weight_OD).addmm_(grad_low_NR, down_RD)
            grad_inputs = grad_inputs.view(*grad.shape[:-1], -1)
        return grad_inputs, None, None, grad_down, grad_up, None


def attach(model: nn.Module, head: nn.Module, rank: int, alpha: float, seed: int) -> list[str]:
    """Freeze the model and replace every linear layer except its output head; returns their paths."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    paths = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]
    for path in paths:
        base = model.get_submodule(path)
        assert isinstance(base, nn.Linear), "the list above holds linear layers only"
        model.set_submodule(path, LoraLinear(base, rank, alpha, generator))
    return paths


def adapters(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield path, module


@contextmanager
def switched_off() -> Iterator[None]:
    """Models as they were before their adapters, in this thread."""
    token = IS_OFF.set(True)
    try:
        yield
    finally:
        IS_OFF.reset(token)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Adapter weights under the names that peft gives them."""
    found: dict[str, Tensor] = {}
    for path, layer in adapters(model):
        found[f"{PREFIX}{path}.lora_A.weight"] = layer.down.detach()
        found[f"{PREFIX}{path}.lora_B.weight"] = layer.up.detach()
    return found

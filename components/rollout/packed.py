"""Linear layers whose weights lie as the CPU's kernels read them, ordered once and not in every call.

A step of a rollout multiplies few rows by all weights of the model, so putting the weights into the kernel's order costs
as much as the product itself. Only bfloat16 on CPUs that compute in it; all other models stay as they are.
Shapes: _ND inputs, _NO outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn

ROWS = 64
"""Rows of the inputs that the order is chosen for; any number of rows works."""


class PackedLinear(nn.Module):
    """A linear layer for sampling; it has no weight that could be trained or saved."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._weight = _kernels()._reorder_linear_weight(layer.weight.detach(), ROWS)
        self._bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, inputs_ND: Tensor) -> Tensor:
        return _kernels()._linear_pointwise(inputs_ND, self._weight, self._bias, "none", [], "")


def pack_linears(model: nn.Module) -> None:
    """Replace the linear layers of a model that nobody else uses, where the CPU has a kernel for it."""
    if not _has_kernel():
        return
    for path, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and _is_suited(layer.weight):
            model.set_submodule(path, PackedLinear(layer))


def _is_suited(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16


def _has_kernel() -> bool:
    # The library's compiler uses these kernels; there is no public name for them.
    return torch.backends.mkldnn.is_available() and _kernels()._is_mkldnn_bf16_supported()


def _kernels() -> Any:
    return torch.ops.mkldnn

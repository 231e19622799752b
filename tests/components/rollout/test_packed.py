"""Linear layers with weights in the kernel's order compute what plain ones do."""

import pytest
import torch
from torch import nn

from components.rollout.packed import PackedLinear, pack_linears


def model(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 80), nn.GELU(), nn.Linear(80, 24, bias=False)).to(dtype)


@pytest.mark.parametrize("rows", [1, 7, 64, 300])
@torch.inference_mode()
def test_a_packed_model_computes_the_same(rows: int) -> None:
    """Sums of at most 80 products in another order, rounded to 8 bits: one unit in the last place of values up to 2."""
    plain, packed = model(torch.bfloat16), model(torch.bfloat16)
    pack_linears(packed)
    inputs = torch.randn(2, rows, 48).to(torch.bfloat16)
    assert packed(inputs).shape == (2, rows, 24)
    torch.testing.assert_close(packed(inputs), plain(inputs), atol=2**-6, rtol=2**-6)


def test_only_bfloat16_layers_are_packed() -> None:
    single = model(torch.float32)
    pack_linears(single)
    assert not any(isinstance(each, PackedLinear) for each in single.modules())


def test_where_the_cpu_has_no_kernel_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    plain = model(torch.bfloat16)
    pack_linears(plain)
    assert not any(isinstance(each, PackedLinear) for each in plain.modules())

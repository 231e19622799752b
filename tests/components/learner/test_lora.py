"""The adapter layer against the formula and against the peft library."""

import json

import pytest
import torch
from torch import nn

from components.errors import ConfigError
from components.learner.lora import LoraLinear, adapters, switched_off
from components.learner.policy import ModelSettings, load_policy
from tests.components.learner.conftest import TINY


def layer(bias=False):
    generator = torch.Generator().manual_seed(0)
    made = LoraLinear(nn.Linear(6, 5, bias=bias).double(), rank=2, alpha=6.0, generator=generator)
    made.base.requires_grad_(False)
    made.double()
    made.up.data = torch.randn(5, 2, generator=generator).double()
    return made


@pytest.mark.parametrize("bias", [False, True])
def test_value_and_gradients(bias):
    """y = x W' + b + (6 / 2) (x A') B', differentiated automatically, in float64."""
    made = layer(bias)
    inputs = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(1)).double()
    inputs.requires_grad_()
    leaves = (inputs, made.down, made.up)
    plain = made.base(inputs) + 3.0 * (inputs @ made.down.T) @ made.up.T
    probe = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2)).double()
    mine = torch.autograd.grad((probe * made(inputs)).sum(), leaves)
    theirs = torch.autograd.grad((probe * plain).sum(), leaves)
    torch.testing.assert_close(made(inputs), plain)
    for left, right in zip(mine, theirs, strict=True):
        # Gradients of the adapter are handed over in float32.
        torch.testing.assert_close(left.double(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_merged_layer_computes_the_same(bias):
    made = layer(bias).float()
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(made.merged()(inputs), made(inputs))


def test_fresh_adapter_changes_nothing_and_every_layer_has_one(tiny_dir):
    fresh = load_policy(tiny_dir, None, TINY, seed=3)
    # Two layers of four attention and three feed-forward products; the head has none.
    assert len(list(adapters(fresh.model))) == 2 * 7
    ids = tuple(range(50, 70))
    with fresh.without_adapter():
        base = fresh.probe_logprobs(ids)
    assert fresh.probe_logprobs(ids) == base


def test_switching_off_and_on(policy):
    ids = tuple(range(50, 70))
    on = policy.probe_logprobs(ids)
    with switched_off():
        off = policy.probe_logprobs(ids)
    assert off != on
    assert policy.probe_logprobs(ids) == on


def test_seed_draws_the_adapter(tiny_dir):
    first, same, other = (
        load_policy(tiny_dir, None, TINY, seed=seed).trainable() for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_peft_reads_what_is_saved_and_computes_the_same(policy, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy.save_adapter(tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(policy.model_dir, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    ids = torch.arange(50, 80)[None]
    with torch.no_grad():
        wanted = theirs(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    assert policy.probe_logprobs(tuple(ids[0].tolist())) == pytest.approx(wanted.tolist(), abs=1e-5)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8.0)
    # A set's order differs between processes; the digest of equal adapters must not.
    assert config["target_modules"] == sorted(config["target_modules"])
    assert len(config["target_modules"]) > 3


def test_saved_adapter_comes_back_exactly(policy, tiny_dir, tmp_path):
    policy.save_adapter(tmp_path)
    back = load_policy(tiny_dir, tmp_path, TINY, seed=99)
    mine, theirs = policy.trainable(), back.trainable()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in tmp_path.iterdir())


def test_adapter_of_another_rank_is_refused(policy, tiny_dir, tmp_path):
    policy.save_adapter(tmp_path)
    with pytest.raises(ConfigError, match=r"has rank 4 and alpha 8\.0, the settings say 2 and 8.0"):
        load_policy(tiny_dir, tmp_path, ModelSettings(2, 8.0, "float32"))


def test_adapter_of_another_model_is_refused(policy, tiny_dir, tmp_path):
    from safetensors.torch import load_file, save_file

    policy.save_adapter(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, file)
    with pytest.raises(ConfigError, match="belongs to another model"):
        load_policy(tiny_dir, tmp_path, TINY)

"""Attention over slots against the definition, for every shape of a step."""

import pytest
import torch
from torch import nn

from components.errors import ConfigError
from components.rollout._attention import CacheShape, KeyValueCache, Run, attend, plan

HEADS, GROUPS, WIDTH = 2, 3, 8
SHAPE = CacheShape(
    num_layers=1,
    num_slots=9,
    num_heads=HEADS,
    head_width=WIDTH,
    slot_tokens=12,
    dtype=torch.float32,
)


def layer() -> nn.Module:
    module = nn.Module()
    module.layer_idx = 0  # pyright: ignore[reportAttributeAccessIssue]
    return module


def random_cache() -> KeyValueCache:
    cache = KeyValueCache(SHAPE, torch.device("cpu"))
    torch.manual_seed(0)
    cache.keys_LSKCD.normal_()
    cache.values_LSKCD.normal_()
    return cache


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([Run(0, 0, 1)], id="first token of all"),
        pytest.param([Run(3, 4, 1), Run(4, 11, 1), Run(5, 0, 1)], id="neighbours"),
        pytest.param([Run(1, 4, 1), Run(3, 2, 1), Run(4, 7, 1)], id="a gap between lanes"),
        pytest.param([Run(0, 4, 1), Run(8, 2, 1)], id="far apart"),
        pytest.param([Run(2, 0, 5)], id="a prompt"),
        pytest.param([Run(2, 3, 5), Run(6, 0, 12)], id="prompts, one after a prefix"),
        pytest.param([Run(0, 5, 1), Run(2, 3, 4), Run(4, 2, 1), Run(7, 0, 2)], id="mixed"),
    ],
)
def test_every_token_attends_to_its_own_slot_up_to_itself(runs: list[Run]) -> None:
    """out = softmax(q k / sqrt(D)) v over positions 0..p of the slot, one token and head at a time."""
    cache = random_cache()
    count = sum(run.count for run in runs)
    query = torch.randn(1, HEADS * GROUPS, count, WIDTH)
    key, value = torch.randn(1, HEADS, count, WIDTH), torch.randn(1, HEADS, count, WIDTH)
    step = plan(cache, runs)
    out, _ = attend(layer(), query, key, value, None, nightshift_step=step)

    places = [(run.slot, run.position + offset) for run in runs for offset in range(run.count)]
    assert list(zip(step.slots_N.tolist(), step.positions_N.tolist(), strict=True)) == places
    for token, (slot, position) in enumerate(places):
        for head in range(HEADS * GROUPS):
            keys = cache.keys_LSKCD[0, slot, head // GROUPS, : position + 1]
            values = cache.values_LSKCD[0, slot, head // GROUPS, : position + 1]
            weights = torch.softmax(keys @ query[0, head, token] / WIDTH**0.5, -1)
            torch.testing.assert_close(out[0, token, head], weights @ values)
        torch.testing.assert_close(cache.keys_LSKCD[0, slot, :, position], key[0, :, token])
        torch.testing.assert_close(cache.values_LSKCD[0, slot, :, position], value[0, :, token])


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([Run(3, 6, 1), Run(4, 5, 1), Run(5, 11, 1)], id="neighbours"),
        pytest.param([Run(1, 5, 1), Run(3, 8, 1), Run(4, 7, 1)], id="a gap between lanes"),
        pytest.param([Run(0, 7, 1), Run(8, 9, 1)], id="far apart"),
        pytest.param([Run(1, 7, 1), Run(2, 0, 4), Run(3, 5, 1)], id="beside a prompt"),
    ],
)
@pytest.mark.parametrize("num_shared", [1, 4, 5])
def test_positions_read_once_for_all_give_the_same_attention(
    runs: list[Run], num_shared: int
) -> None:
    """Slots that hold the same five positions: what is read from one of them is what each would have read itself."""
    cache = random_cache()
    first = runs[0].slot
    for run in runs:
        if run.count == 1 and run.slot != first:
            cache.copy(first, run.slot, 0, 5)
    count = sum(run.count for run in runs)
    query = torch.randn(1, HEADS * GROUPS, count, WIDTH)
    key, value = torch.randn(1, HEADS, count, WIDTH), torch.randn(1, HEADS, count, WIDTH)
    own, shared = (
        attend(layer(), query, key, value, None, nightshift_step=plan(cache, runs, num))[0]
        for num in (0, num_shared)
    )
    torch.testing.assert_close(shared, own)


def test_the_shared_positions_come_from_one_slot_alone() -> None:
    """Zeros at the shared positions of all other slots change nothing: they are not read."""
    cache = random_cache()
    runs = [Run(2, 6, 1), Run(3, 7, 1), Run(4, 5, 1)]
    query, key, value = (
        torch.randn(1, 6, 3, WIDTH),
        torch.randn(1, 2, 3, WIDTH),
        torch.randn(1, 2, 3, WIDTH),
    )
    step = plan(cache, runs, num_shared=5)
    before, _ = attend(layer(), query, key, value, None, nightshift_step=step)
    cache.keys_LSKCD[:, 3:5, :, :5] = 0
    cache.values_LSKCD[:, 3:5, :, :5] = 0
    after, _ = attend(layer(), query, key, value, None, nightshift_step=step)
    assert torch.equal(before, after)


def test_last_points_at_the_end_of_each_run() -> None:
    step = plan(random_cache(), [Run(0, 5, 1), Run(2, 3, 4), Run(4, 2, 1)])
    assert step.last_R.tolist() == [0, 4, 5]


def test_copy_moves_a_range_and_nothing_more() -> None:
    cache = random_cache()
    before = cache.keys_LSKCD[:, 5].clone()
    cache.copy(source=1, target=5, start=2, stop=6)
    assert torch.equal(cache.keys_LSKCD[:, 5, :, 2:6], cache.keys_LSKCD[:, 1, :, 2:6])
    assert torch.equal(cache.keys_LSKCD[:, 5, :, :2], before[:, :, :2])
    assert torch.equal(cache.keys_LSKCD[:, 5, :, 6:], before[:, :, 6:])
    assert torch.equal(cache.values_LSKCD[:, 5, :, 2:6], cache.values_LSKCD[:, 1, :, 2:6])


def test_swap_exchanges_a_range_and_nothing_more() -> None:
    cache = random_cache()
    before = cache.values_LSKCD.clone()
    cache.swap(1, 5, start=2, stop=6)
    assert torch.equal(cache.values_LSKCD[:, 5, :, 2:6], before[:, 1, :, 2:6])
    assert torch.equal(cache.values_LSKCD[:, 1, :, 2:6], before[:, 5, :, 2:6])
    for kept in (slice(0, 2), slice(6, None)):
        assert torch.equal(cache.values_LSKCD[..., kept, :], before[..., kept, :])


@pytest.mark.parametrize("variant", ["sliding_window", "softcap", "s_aux"])
def test_attention_of_another_kind_is_refused(variant: str) -> None:
    tensors = [torch.zeros(1, heads, 1, WIDTH) for heads in (HEADS * GROUPS, HEADS, HEADS)]
    step = plan(random_cache(), [Run(0, 0, 1)])
    with pytest.raises(ConfigError, match=variant):
        attend(layer(), *tensors, None, nightshift_step=step, **{variant: 4})


def test_attention_outside_the_engine_is_refused() -> None:
    tensors = [torch.zeros(1, heads, 1, WIDTH) for heads in (HEADS * GROUPS, HEADS, HEADS)]
    with pytest.raises(ConfigError, match="only inside TransformersEngine"):
        attend(layer(), *tensors, None)

"""What every credit plug-in must keep, run over all names that exist."""

import json
from dataclasses import asdict, replace

import pytest

from components import plugins
from components.credit.order import assign
from components.errors import RecordError
from components.records import Group
from tests.components.credit.groups import group

NAMES = plugins.names("credit")
RETURNS = [1.0, 0.0, None, 0.5, 0.0]


@pytest.fixture(params=NAMES)
def chain(request):
    """The plug-in, behind GRPO as base when it is no base itself."""
    plug_in = plugins.make("credit", request.param)
    return [plug_in] if plug_in.stage == "base" else [plugins.make("credit", "grpo"), plug_in]


def test_there_are_plug_ins():
    assert {"grpo", "dr_grpo", "rloo"} <= set(NAMES)


def test_zero_outside_the_mask(chain):
    for sample in assign(*group(RETURNS), chain).samples:
        for value, sampled in zip(sample.advantages_T or (), sample.action_mask_T, strict=False):
            assert sampled or value == 0


def test_permuting_trajectories_permutes_the_output(chain):
    given, samples = group(RETURNS)
    order = [3, 0, 4, 2, 1]
    moved = Group(
        given.task,
        tuple(given.trajectories_G[place] for place in order),
        {name: tuple(values[place] for place in order) for name, values in given.rewards.items()},
    )
    straight = {each.trajectory_id: each for each in assign(given, samples, chain).samples}
    permuted = assign(moved, [samples[place] for place in order], chain).samples
    assert [straight[each.trajectory_id] for each in permuted] == permuted


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constant_group_gets_no_advantage(chain, value):
    done = assign(*group([value] * 4), chain, flat="count")
    assert not done.has_signal
    assert all(not any(sample.advantages_T or ()) for sample in done.samples)


def test_unscored_trajectory_gets_no_stream(chain):
    done = assign(*group(RETURNS), chain)
    assert done.num_unscored == 1
    assert done.samples[2].advantages_T is None


def test_inputs_stay_as_they_were(chain):
    given, samples = group(RETURNS)
    before = json.dumps([asdict(given), *map(asdict, samples)])
    assign(given, samples, chain)
    assert json.dumps([asdict(given), *map(asdict, samples)]) == before


def test_foreign_sample_is_refused(chain):
    given, samples = group(RETURNS)
    with pytest.raises(RecordError, match="'stranger' is not in the group"):
        assign(given, [replace(samples[0], trajectory_id="stranger")], chain)


def test_infinite_reward_is_refused(chain):
    with pytest.raises(RecordError, match="finite"):
        assign(*group([float("inf"), 0.0]), chain)

"""The room where credit is applied: order, flat groups, lints."""

import math
from dataclasses import dataclass, replace

import pytest

from components.credit.grpo import Grpo
from components.credit.order import assign, in_order
from components.errors import ConfigError, Misaligned, RecordError
from components.records import Group
from tests.components.credit.groups import MASK, advantages, group


@dataclass(frozen=True)
class Scripted:
    """Rewrites advantages by a function, at any stage."""

    stage: str
    change: object

    def assign(self, group, samples):
        return [self.change(sample) for sample in samples]


def scaled(factor):
    def change(sample):
        return replace(sample, advantages_T=tuple(factor * value for value in sample.advantages_T))

    return change


def shifted(amount):
    def change(sample):
        values = zip(sample.advantages_T, sample.action_mask_T, strict=True)
        return replace(sample, advantages_T=tuple(v + amount if on else v for v, on in values))

    return change


def test_order_is_that_of_the_stages_whatever_the_recipe_says():
    """Base 1.5 and -0.5 for [1,0,0,0]; times 2, plus 1, times 10 = 40 and 0, not (1.5 + 1) * 2 * 10."""
    plug_ins = [
        Scripted("post_scale", scaled(10)),
        Scripted("add", shifted(1)),
        Scripted("multiply", scaled(2)),
        Grpo(),
    ]
    done = assign(*group([1, 0, 0, 0]), plug_ins)
    assert advantages(done.samples) == pytest.approx([40, 0, 0, 0], abs=1e-4)


@pytest.mark.parametrize("plug_ins", [[], [Grpo(), Grpo()], [Scripted("add", shifted(1))]])
def test_exactly_one_base(plug_ins):
    with pytest.raises(ConfigError, match="exactly one base"):
        in_order(plug_ins)


def test_unknown_stage_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'middle'.*base, replace, multiply, add, post_scale"):
        in_order([Grpo(), Scripted("middle", shifted(1))])


def test_flat_groups_are_excluded_or_counted():
    """S17: two of three groups carry no signal; excluded they keep no stream, counted they keep zeros."""
    groups = [group([1.0] * 4, "p1"), group([0.0] * 4, "p2"), group([0.0, 1.0, 0.0, 1.0], "p3")]
    for flat, kept in (("exclude", None), ("count", 0.0)):
        done = [assign(*each, [Grpo()], flat=flat) for each in groups]
        assert [each.has_signal for each in done] == [False, False, True]
        assert advantages(done[0].samples) == [kept] * 4
        assert advantages(done[1].samples) == [kept] * 4


def test_abstaining_channel_is_not_part_of_the_sum():
    """S18: a = [1,0,1,0], b = [-,.5,-,.5] sum to [1,.5,1,.5]; mean .75, std .288675, so +-.866."""
    given, samples = group([0.0] * 4)
    given = Group(
        given.task,
        given.trajectories_G,
        {"a": (1.0, 0.0, 1.0, 0.0), "b": (None, 0.5, None, 0.5)},
    )
    found = advantages(assign(given, samples, [Grpo()]).samples)
    a = math.sqrt(0.75)
    assert found == pytest.approx([a, -a, a, -a], rel=1e-4)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (
            lambda s: replace(s, advantages_T=(0.0, math.nan, 0.0, 0.0, 0.0)),
            RecordError,
            "nan at token 1",
        ),
        (
            lambda s: replace(s, advantages_T=(1.0,) * 5),
            RecordError,
            "token 0, which the policy did not sample",
        ),
        (lambda s: replace(s, advantages_T=(0.0,) * 4), Misaligned, "got 4 values, expected 5"),
        (
            lambda s: replace(s, action_mask_T=tuple(not on for on in MASK)),
            RecordError,
            "more than streams",
        ),
        (lambda s: 1 / 0, RecordError, "Scripted failed on task 'p'.*ZeroDivisionError"),
    ],
)
def test_bad_output_names_plug_in_and_place(change, error, match):
    with pytest.raises(error, match=match) as caught:
        assign(*group([1, 0]), [Grpo(), Scripted("add", change)])
    assert "Scripted" in str(caught.value)

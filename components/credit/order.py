"""All credit plug-ins of a recipe, applied to one group in the fixed order, with lints on what they wrote.

    base -> replace -> multiply -> add -> post_scale

Inside a stage the order is that of the recipe. Weights therefore apply after normalisation, never before it.

A group in which no token ends with a non-zero advantage carries no signal. `flat` says what becomes of it: `exclude`
takes its advantages away, so its tokens enter no denominator; `count` leaves zeros, which dilute the step.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

from components.credit._kernels import is_scored
from components.errors import ConfigError, Misaligned, RecordError
from components.protocols import Credit, CreditStage
from components.records import Group, Sample

STREAMS = ("advantages_T", "ce_weights_T", "kl_weights_T")


class Credited(NamedTuple):
    samples: list[Sample]
    has_signal: bool
    """False for a group whose advantages are all zero or missing."""
    num_unscored: int
    """Trajectories without any reward; they are not trained on."""


def in_order(plug_ins: Sequence[Credit]) -> list[Credit]:
    """The plug-ins in the order they apply.

    Raises:
        ConfigError: not exactly one base, or an unknown stage.
    """
    stages = get_args(CreditStage)
    for plug_in in plug_ins:
        if plug_in.stage not in stages:
            raise ConfigError(
                f"credit plug-in {type(plug_in).__name__} has stage {plug_in.stage!r}: expected one of {', '.join(stages)}"
            )
    bases = [type(each).__name__ for each in plug_ins if each.stage == "base"]
    if len(bases) != 1:
        raise ConfigError(
            f"credit needs exactly one base plug-in, got {len(bases)}: {', '.join(bases)}"
        )
    return sorted(plug_ins, key=lambda each: stages.index(each.stage))


def assign(
    group: Group,
    samples: Sequence[Sample],
    plug_ins: Sequence[Credit],
    flat: Literal["exclude", "count"] = "exclude",
) -> Credited:
    """Streams of one group's samples.

    Raises:
        ConfigError: the plug-ins do not go together.
        RecordError: a plug-in refused the group or wrote streams that no learner may see; names plug-in and trajectory.
    """
    done = list(samples)
    for plug_in in in_order(plug_ins):
        try:
            given, done = done, plug_in.assign(group, done)
        except RecordError:
            raise
        except Exception as error:
            raise RecordError(
                f"credit plug-in {type(plug_in).__name__} failed on task {group.task.id!r}: {error!r}"
            ) from error
        _lint(given, done, type(plug_in).__name__)
    has_signal = any(any(sample.advantages_T or ()) for sample in done)
    if not has_signal and flat == "exclude":
        done = [replace(sample, advantages_T=None) for sample in done]
    num_unscored = sum(not is_scored(value) for value in group.returns_G)
    return Credited(done, has_signal, num_unscored)


def _lint(given: Sequence[Sample], done: Sequence[Sample], name: str) -> None:
    before = [(each.trajectory_id, each.input_ids_T, each.action_mask_T) for each in given]
    after = [(each.trajectory_id, each.input_ids_T, each.action_mask_T) for each in done]
    if before != after:
        raise RecordError(
            f"credit plug-in {name} changed more than streams: samples, tokens or masks differ"
        )
    for sample in done:
        for stream in STREAMS:
            values = getattr(sample, stream)
            if values is not None:
                _lint_stream(
                    sample, values, f"{stream} of trajectory {sample.trajectory_id!r} by {name}"
                )


def _lint_stream(sample: Sample, values: Sequence[float], what: str) -> None:
    if len(values) != len(sample.input_ids_T):
        raise Misaligned(f"{what}: got {len(values)} values, expected {len(sample.input_ids_T)}")
    for t, (value, sampled) in enumerate(zip(values, sample.action_mask_T, strict=True)):
        if not math.isfinite(value):
            raise RecordError(f"{what} is {value!r} at token {t}: expected a finite number")
        if value != 0 and not sampled:
            raise RecordError(
                f"{what} is {value!r} at token {t}, which the policy did not sample: expected 0"
            )

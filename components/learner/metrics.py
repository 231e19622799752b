"""What one optimizer step reports, and how packs add up to it.

Shapes: E tokens of the policy-gradient term.
"""

import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from components.records import Sample


@dataclass(frozen=True, slots=True)
class StepMetrics:
    step: int
    """Optimizer steps applied so far, this one included."""
    skipped: str | None = None
    """Why nothing was applied."""
    loss: float = 0.0
    loss_pg: float = 0.0
    loss_ce: float = 0.0
    loss_kl: float = 0.0
    reference_kl: float = 0.0
    """Normalised k3 to the policy without its adapter, before beta."""
    grad_norm: float = 0.0
    """Before clipping."""
    learning_rate: float = 0.0
    entropy: float = 0.0
    """Mean entropy of the policy (nats) at the positions whose logits were formed."""
    num_samples: int = 0
    num_packs: int = 0
    num_tokens: int = 0
    """Tokens of all samples."""
    num_computed_tokens: int = 0
    """Tokens that went through the model after sharing prefixes."""
    num_trained_tokens: int = 0
    """Tokens with a term of the loss."""
    num_pg_tokens: int = 0
    """Tokens in the denominator of the policy-gradient term."""
    seconds: float = 0.0
    tokens_per_s: float = 0.0
    """`num_tokens` per second."""
    logprob_difference_mean: float | None = None
    """Mean |sampler - trainer| log-probability; None when no token has both."""
    logprob_difference_max: float | None = None
    clip_rate: float = 0.0
    """Share of policy-gradient tokens whose gradient the clip removed."""
    retokenised_rate: float = 0.0
    """Share of samples with advantages but without behaviour log-probabilities."""
    zero_variance_rate: float | None = None
    """Share of groups without signal, as the caller counted."""

    def figures(self) -> dict[str, float]:
        """The numbers, for a tracker."""
        return {
            key: float(value)
            for key, value in asdict(self).items()
            if isinstance(value, int | float)
        }


@dataclass(slots=True)
class Sums:
    """What packs add up to over one step."""

    pg: float = 0.0
    ce: float = 0.0
    kl: float = 0.0
    reference_kl: float = 0.0
    entropy: float = 0.0
    num_rows: int = 0
    num_trained: int = 0
    num_pg: int = 0
    num_clipped: int = 0
    difference: float = 0.0
    difference_max: float = 0.0
    num_compared: int = 0

    def add(self, other: "Sums") -> None:
        for each in fields(self):
            combine = max if each.name == "difference_max" else operator.add
            setattr(self, each.name, combine(getattr(self, each.name), getattr(other, each.name)))


def compare(trainer_E: Tensor, sampler_E: Tensor, sums: Sums) -> None:
    known = ~sampler_E.isnan()
    if not bool(known.any()):
        return
    difference = (trainer_E - sampler_E)[known].abs()
    sums.difference += float(difference.sum())
    sums.difference_max = max(sums.difference_max, float(difference.max()))
    sums.num_compared += int(known.sum())


def metrics_of(sums: Sums) -> StepMetrics:
    compared = sums.num_compared
    return StepMetrics(
        step=0,
        loss=sums.pg + sums.ce + sums.kl,
        loss_pg=sums.pg,
        loss_ce=sums.ce,
        loss_kl=sums.kl,
        reference_kl=sums.reference_kl,
        entropy=sums.entropy / max(sums.num_rows, 1),
        num_trained_tokens=sums.num_trained,
        logprob_difference_mean=sums.difference / compared if compared else None,
        logprob_difference_max=sums.difference_max if compared else None,
        clip_rate=sums.num_clipped / max(sums.num_pg, 1),
    )


def described(
    samples: Sequence[Sample], chosen: Sequence[Sample], seconds: float
) -> dict[str, Any]:
    num_tokens = sum(len(sample.input_ids_T) for sample in chosen)
    with_credit = [sample for sample in samples if sample.advantages_T is not None]
    unknown = sum(sample.logprobs_T is None for sample in with_credit)
    return {
        "num_samples": len(samples),
        "num_tokens": num_tokens,
        "seconds": seconds,
        "tokens_per_s": num_tokens / seconds,
        "retokenised_rate": unknown / max(len(with_credit), 1),
    }

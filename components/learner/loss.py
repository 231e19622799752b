"""The loss of all methods: policy gradient + cross entropy + KL to a teacher, each over its own weighted tokens.

    rho_t     = exp(clamp(log pi_t - log pi_old,t, -20, 20))                       ratio level `token`
    rho_t     = sg[s] * pi_t / sg[pi_t],  s = exp(mean_t(log pi_t - log pi_old,t)) ratio level `sequence`
    gain_t    = min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t), at least c A_t where A_t < 0 (dual clip)
    pg        = - sum_t n_t gain_t  +  beta sum_t n_t k3_t,  k3 = e^d - d - 1,  d = log pi_ref - log pi
    ce        = - sum_t w_t log pi_t / (number of t with w_t != 0)
    kl        = sum_t v_t KL_t / (number of t with v_t != 0)

The normaliser n_t counts all sampled tokens of samples that carry advantages, those with advantage zero included:
`token_mean` 1 / tokens of the step; `sequence_mean` 1 / (tokens of the sample * samples); `constant`
1 / (constant_length * samples). A sequence is one sample. KL_t is, with the teacher's top tokens, the forward KL on
those tokens renormalised on both sides; with the teacher's log-probability of the sampled token alone, the one-sample
estimate of the reverse KL, whose gradient is that of (log pi_t - log pi_teacher,t) held fixed times log pi_t. A sample
without behaviour log-probabilities is taken as on-policy: its ratio is 1.

Source: GRPO arXiv 2402.03300, Dr. GRPO 2503.20783 (constant), DAPO 2503.14476 (token_mean, clip_high), GSPO 2507.18071
(sequence ratio), dual clip 1912.09729, k3 joschu.net/blog/kl-approx.html; top tokens as in 2606.16409.
Our choice: ce and kl divide by the number of weighted tokens, not by the sum of weights, so doubling all weights
doubles the push.
Degenerate cases: no tokens in a term gives zero with a gradient; denominators are at least 1.
Shapes: E entries (tokens with a term), K top tokens of the teacher.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from components.errors import ConfigError
from components.records import Sample

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class LossSettings:
    ratio_level: Literal["token", "sequence"] = "token"
    """Whether each token has its own importance ratio or a sequence has one."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = 3.0
    """For negative advantages the loss of a token is at most this times |A|; None = unbounded."""
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """How token losses become one number."""
    constant_length: int | None = None
    """Tokens per sequence that `constant` divides by."""
    reference_kl: float = 0.0
    """Beta of the k3 penalty to the policy without its adapter; 0 costs nothing."""

    def __post_init__(self) -> None:
        if (self.aggregation == "constant") != (self.constant_length is not None):
            raise ConfigError(
                f"aggregation {self.aggregation!r} with constant_length {self.constant_length!r}: "
                "the length belongs to 'constant' and is needed there"
            )
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(f"dual_clip must be greater than 1, got {self.dual_clip!r}")


class Normalizers(NamedTuple):
    """Token counts of one step, over all its packs."""

    pg_tokens: int
    pg_samples: int
    ce_tokens: int
    kl_tokens: int


def normalizers(samples: Sequence[Sample]) -> Normalizers:
    with_credit = [sample for sample in samples if sample.advantages_T is not None]
    return Normalizers(
        pg_tokens=sum(sum(sample.action_mask_T) for sample in with_credit),
        pg_samples=len(with_credit),
        ce_tokens=sum(_num_weighted(sample.ce_weights_T) for sample in samples),
        kl_tokens=sum(_num_weighted(sample.kl_weights_T) for sample in samples),
    )


def _num_weighted(weights_T: Sequence[float] | None) -> int:
    return sum(weight != 0 for weight in weights_T or ())


def token_weight(num_tokens: int, totals: Normalizers, settings: LossSettings) -> float:
    """n_t for the tokens of a sample that has `num_tokens` sampled ones."""
    if settings.aggregation == "token_mean":
        return 1 / max(totals.pg_tokens, 1)
    length = (
        num_tokens if settings.aggregation == "sequence_mean" else (settings.constant_length or 1)
    )
    return 1 / (max(length, 1) * max(totals.pg_samples, 1))


class PgEntries(NamedTuple):
    """Tokens of the policy-gradient term."""

    old_logprobs_E: Tensor
    """NaN where unknown: ratio 1."""
    advantages_E: Tensor
    weights_E: Tensor
    sequence_E: Tensor
    """Number of the sequence each token belongs to, from 0."""


class PgTerm(NamedTuple):
    loss: Tensor
    num_clipped: int
    """Tokens whose gradient the clip removed."""
    reference_kl: float
    """Normalised k3, before beta."""


def policy_gradient(
    logprobs_E: Tensor,
    entries: PgEntries,
    settings: LossSettings,
    ref_logprobs_E: Tensor | None = None,
) -> PgTerm:
    known = torch.where(entries.old_logprobs_E.isnan(), logprobs_E.detach(), entries.old_logprobs_E)
    log_ratio = (logprobs_E - known).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if settings.ratio_level == "sequence":
        log_ratio = _sequence_mean(log_ratio.detach(), entries.sequence_E)
        log_ratio = log_ratio + logprobs_E - logprobs_E.detach()
    ratio = log_ratio.exp()
    free = ratio * entries.advantages_E
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * entries.advantages_E
    gain = torch.minimum(free, clipped)
    if settings.dual_clip is not None:
        floor = settings.dual_clip * entries.advantages_E
        gain = torch.where(entries.advantages_E < 0, torch.maximum(gain, floor), gain)
    loss = -(entries.weights_E * gain).sum()
    penalty = 0.0
    if ref_logprobs_E is not None:
        k3 = (entries.weights_E * k3_divergence(logprobs_E, ref_logprobs_E)).sum()
        loss = loss + settings.reference_kl * k3
        penalty = float(k3.detach())
    return PgTerm(loss, int((gain != free).sum()), penalty)


def k3_divergence(logprobs_E: Tensor, ref_logprobs_E: Tensor) -> Tensor:
    """Unbiased and never negative estimate of KL(pi || ref) at sampled tokens."""
    difference = ref_logprobs_E - logprobs_E
    return difference.exp() - difference - 1


def _sequence_mean(values_E: Tensor, sequence_E: Tensor) -> Tensor:
    num = int(sequence_E.max()) + 1 if len(sequence_E) else 0
    total = values_E.new_zeros(num).index_add_(0, sequence_E, values_E)
    count = values_E.new_zeros(num).index_add_(0, sequence_E, torch.ones_like(values_E))
    return (total / count.clamp(min=1))[sequence_E]


def cross_entropy(logprobs_E: Tensor, weights_E: Tensor, num_tokens: int) -> Tensor:
    return -(weights_E * logprobs_E).sum() / max(num_tokens, 1)


def teacher_kl(
    logprobs_E: Tensor, teacher_logprobs_E: Tensor, weights_E: Tensor, num_tokens: int
) -> Tensor:
    """Reverse KL from the sampled tokens: the value is the estimate, the gradient that of the score function."""
    difference = (logprobs_E - teacher_logprobs_E).detach()
    estimate = difference * (logprobs_E - logprobs_E.detach()).exp()
    return (weights_E * estimate).sum() / max(num_tokens, 1)


def teacher_topk_kl(
    logprobs_EK: Tensor, teacher_logprobs_EK: Tensor, weights_E: Tensor, num_tokens: int
) -> Tensor:
    """Forward KL on the teacher's top tokens, both sides renormalised; -inf pads rows with fewer tokens."""
    teacher = teacher_logprobs_EK.log_softmax(-1)
    policy = torch.where(teacher.isinf(), teacher, logprobs_EK).log_softmax(-1)
    terms = torch.where(teacher.isinf(), 0.0, teacher.exp() * (teacher - policy))
    return (weights_E * terms.sum(-1)).sum() / max(num_tokens, 1)

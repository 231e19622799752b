"""The three terms on worked numbers. A loss is minus the gain, so signs are opposite to the tables of the methods."""

import math

import pytest
import torch

from components.errors import ConfigError
from components.learner.loss import (
    LossSettings,
    Normalizers,
    PgEntries,
    cross_entropy,
    k3_divergence,
    normalizers,
    policy_gradient,
    teacher_kl,
    teacher_topk_kl,
    token_weight,
)
from tests.components.learner.samples import demonstration, rollouts

DAPO = LossSettings(clip_low=0.2, clip_high=0.28)


def entries(ratios, advantages, weights=None, sequence=None):
    """Tokens whose policy log-probability is 0 and whose ratio is as given."""
    num = len(ratios)
    return PgEntries(
        torch.tensor([-math.log(ratio) for ratio in ratios]),
        torch.tensor([float(a) for a in advantages]),
        torch.tensor(weights if weights is not None else [1.0] * num),
        torch.tensor(sequence if sequence is not None else [0] * num, dtype=torch.long),
    )


def zeros(num):
    return torch.zeros(num, requires_grad=True)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "gradient"),
    [
        (1.5, 1, 1.28, 0.0),  # clipped above: no gradient
        (0.5, 1, 0.5, 0.5),  # min(0.5, 0.8)
        (1.5, -1, -1.5, -1.5),  # min(-1.5, -1.28)
        (0.5, -1, -0.8, 0.0),  # clipped below
        (4.0, -1, -3.0, 0.0),  # dual clip: at least 3 A
        (1.0, 2, 2.0, 2.0),
    ],
)
def test_clip(ratio, advantage, gain, gradient):
    """gain = min(rho A, clip(rho, 0.8, 1.28) A); its gradient with respect to log pi is rho A where not clipped."""
    logprobs = zeros(1)
    term = policy_gradient(logprobs, entries([ratio], [advantage]), DAPO)
    (grad,) = torch.autograd.grad(term.loss, logprobs)
    assert term.loss.item() == pytest.approx(-gain)
    assert grad.item() == pytest.approx(-gradient)
    assert term.num_clipped == (gradient == 0)


def test_without_dual_clip_the_loss_is_unbounded():
    term = policy_gradient(zeros(1), entries([4.0], [-1]), LossSettings(dual_clip=None))
    assert term.loss.item() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("settings", "gain"),
    [
        (LossSettings(), -0.6),  # (2 - 8) / 10
        (LossSettings(aggregation="sequence_mean"), 0.0),  # (1 - 1) / 2
        (LossSettings(aggregation="constant", constant_length=10), -0.3),  # (2 - 8) / 10 / 2
    ],
)
def test_aggregation(settings, gain):
    """Two sequences of 2 and 8 tokens with A = +1 and -1 and ratio 1."""
    totals = Normalizers(pg_tokens=10, pg_samples=2, ce_tokens=0, kl_tokens=0)
    weights = [token_weight(n, totals, settings) for n in (2, 8) for _ in range(n)]
    given = entries([1.0] * 10, [1] * 2 + [-1] * 8, weights, [0] * 2 + [1] * 8)
    assert policy_gradient(zeros(10), given, settings).loss.item() == pytest.approx(-gain, abs=1e-6)


def test_sequence_ratio():
    """Log-ratios [0.1, -0.05, 0.2, 0.03] have mean 0.07: s = e^0.07 = 1.0725, clipped at 1.0004. Unclipped, every token
    gets the gradient s * A / 4."""
    log_ratios = [0.1, -0.05, 0.2, 0.03]
    given = entries([math.exp(each) for each in log_ratios], [1] * 4, [0.25] * 4)
    settings = LossSettings(ratio_level="sequence", clip_low=3e-4, clip_high=4e-4)
    assert policy_gradient(zeros(4), given, settings).loss.item() == pytest.approx(-1.0004)
    wide = LossSettings(ratio_level="sequence", clip_low=0.9, clip_high=0.9)
    logprobs = zeros(4)
    term = policy_gradient(logprobs, given, wide)
    (grad,) = torch.autograd.grad(term.loss, logprobs)
    assert term.loss.item() == pytest.approx(-math.exp(0.07))
    assert grad.tolist() == pytest.approx([-math.exp(0.07) / 4] * 4)


def test_unknown_behaviour_logprobs_mean_ratio_one():
    logprobs = torch.tensor([-3.0], requires_grad=True)
    given = entries([1.0], [2.0])._replace(old_logprobs_E=torch.tensor([math.nan]))
    term = policy_gradient(logprobs, given, LossSettings())
    (grad,) = torch.autograd.grad(term.loss, logprobs)
    assert (term.loss.item(), grad.item()) == (-2.0, -2.0)


def test_extreme_log_ratio_is_clamped():
    """A sampler 1000 nats off gives e^20 at most, not infinity."""
    given = entries([1.0], [-1])._replace(old_logprobs_E=torch.tensor([-1000.0]))
    term = policy_gradient(zeros(1), given, LossSettings(dual_clip=None))
    assert term.loss.item() == pytest.approx(math.exp(20))


def test_k3():
    """log pi = -1.0, log ref = -1.2: e^-0.2 + 0.2 - 1 = 0.018731."""
    value = k3_divergence(torch.tensor([-1.0]), torch.tensor([-1.2]))
    assert value.item() == pytest.approx(0.018731, abs=1e-6)


def test_reference_penalty_is_added_with_beta():
    settings = LossSettings(reference_kl=0.5)
    logprobs = torch.tensor([-1.0], requires_grad=True)
    given = entries([1.0], [1])._replace(old_logprobs_E=torch.tensor([-1.0]))
    term = policy_gradient(logprobs, given, settings, torch.tensor([-1.2]))
    assert term.loss.item() == pytest.approx(-1 + 0.5 * 0.018731, abs=1e-6)
    assert term.reference_kl == pytest.approx(0.018731, abs=1e-6)


def test_cross_entropy_divides_by_the_number_of_weighted_tokens():
    """Weights 1 and 3 on log-probabilities -2 and -1, two tokens: (2 + 3) / 2."""
    loss = cross_entropy(torch.tensor([-2.0, -1.0]), torch.tensor([1.0, 3.0]), 2)
    assert loss.item() == pytest.approx(2.5)


def test_reverse_kl_estimate():
    """Value: log pi - log teacher = -1 + 3 = 2. Gradient: the same number times that of log pi."""
    logprobs = torch.tensor([-1.0], requires_grad=True)
    loss = teacher_kl(logprobs, torch.tensor([-3.0]), torch.tensor([1.0]), 1)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert (loss.item(), grad.item()) == pytest.approx((2.0, 2.0))


def test_forward_kl_on_top_tokens():
    """KL([.75,.25] || [.5,.5]) = .75 ln 1.5 + .25 ln .5 = 0.13081; scaling either side before renormalising and padding
    change nothing."""
    teacher = torch.tensor([[0.75, 0.25, 0.0]]).log() - 1.0
    policy = torch.tensor([[0.1, 0.1, 0.7]]).log().requires_grad_()
    loss = teacher_topk_kl(policy, teacher, torch.tensor([1.0]), 1)
    (grad,) = torch.autograd.grad(loss, policy)
    assert loss.item() == pytest.approx(0.13081, abs=1e-5)
    assert grad[0].tolist() == pytest.approx([0.5 - 0.75, 0.5 - 0.25, 0.0])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_no_tokens_give_zero_with_a_gradient(level):
    logprobs = zeros(0)
    total = policy_gradient(logprobs, entries([], []), LossSettings(ratio_level=level)).loss
    total = total + cross_entropy(logprobs, torch.zeros(0), 0)
    total = total + teacher_kl(logprobs, torch.zeros(0), torch.zeros(0), 0)
    total = total + teacher_topk_kl(zeros(0).view(0, 0), torch.zeros(0, 0), torch.zeros(0), 0)
    total.backward()
    assert total.item() == 0.0


def test_normalizers_count_zero_advantages_but_not_missing_streams():
    """2 rollouts of 5 tokens with advantage 0 count, a demonstration counts its 2 weighted tokens for cross entropy."""
    samples = [*rollouts(2, advantage=lambda _: 0.0), demonstration([1, 2, 3, 4], [0, 0, 2, 1])]
    assert normalizers(samples) == Normalizers(10, 2, 2, 0)


@pytest.mark.parametrize(
    "options", [{"aggregation": "constant"}, {"constant_length": 5}, {"dual_clip": 1.0}]
)
def test_options_that_contradict_are_refused(options):
    with pytest.raises(ConfigError):
        LossSettings(**options)

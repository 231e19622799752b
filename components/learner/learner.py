"""One optimizer step on samples: pack, forward, three-term loss, backward, clip, AdamW.

Every denominator counts the whole step, so how samples are packed changes nothing but rounding. Packs are independent:
`num_threads` of them are computed at the same time, each by one thread, and their gradients are added in the order of
the packs. Two threads that share every matrix product would meet at a barrier thousands of times a second, and where
other processes compete for the cores each meeting costs a time slice; here they meet once a pack. Weights change only after all losses and the gradient were found finite: a step is applied whole or not at all.
A step without signal is skipped and says why; it advances neither the step count nor the optimizer.

The learner knows token streams and no methods. Learning rate: linear warm-up, then constant or falling.
Log-probabilities of sampler and trainer are compared at every trained token that has both.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from components.errors import ConfigError, TrainingError
from components.learner import loss as terms
from components.learner.head import PickLogprobs
from components.learner.loss import LossSettings, Normalizers
from components.learner.metrics import StepMetrics, Sums, compare, described, metrics_of
from components.learner.packing import Pack, pack
from components.learner.policy import Policy
from components.learner.streams import PackStreams, Requests, check, collect, has_signal
from components.records import Sample


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    learning_rate: float = 1e-4
    """Peak rate of AdamW."""
    warmup_steps: int = 0
    """Steps over which the rate rises linearly to its peak. A fresh optimizer has no estimate of the gradient's size: its
    first steps move every weight by the full rate."""
    total_steps: int | None = None
    """Steps of the whole run, over which the rate falls linearly towards zero after the warm-up; steps beyond keep the
    last rate. None: the rate stays at its peak."""
    weight_decay: float = 0.0
    """Decoupled decay per step, times the rate."""
    beta1: float = 0.9
    """AdamW: decay of the mean gradient."""
    beta2: float = 0.999
    """AdamW: decay of the mean squared gradient."""
    max_grad_norm: float = 1.0
    """The gradient of a step is scaled down to this norm."""
    max_pack_tokens: int = 2048
    """Nodes per forward pass; bounds memory."""
    temperature: float = 1.0
    """Sampling temperature of the rollouts; logits of the policy-gradient term are divided by it."""
    num_threads: int | None = None
    """Packs computed at the same time, one CPU thread each: the cores one really gets, not more. None: one pack after the
    other with the threads that the process has."""
    loss: LossSettings = field(default_factory=LossSettings)

    def __post_init__(self) -> None:
        positive = (
            "learning_rate",
            "max_grad_norm",
            "max_pack_tokens",
            "temperature",
            "num_threads",
            "total_steps",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be greater than 0, got {getattr(self, name)!r}")


class _Part(NamedTuple):
    """What one pack contributes."""

    gradient: Sequence[Tensor | None]
    sums: Sums


class Learner:
    """Optimizer and counters around a policy."""

    def __init__(self, policy: Policy, settings: LearnerSettings | None = None):
        self.policy = policy
        self.settings = settings or LearnerSettings()
        self.step = 0
        self.parameters = policy.trainable()
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()),
            lr=self.settings.learning_rate,
            betas=(self.settings.beta1, self.settings.beta2),
            weight_decay=self.settings.weight_decay,
        )

    @property
    def learning_rate(self) -> float:
        """Rate of the next step."""
        warmup, total = self.settings.warmup_steps, self.settings.total_steps
        if self.step < warmup:
            share = (self.step + 1) / warmup
        elif total is None:
            share = 1.0
        else:
            share = max(total - self.step, 1) / max(total - warmup, 1)
        return self.settings.learning_rate * share

    def update(
        self, samples: Sequence[Sample], zero_variance_rate: float | None = None
    ) -> StepMetrics:
        """One optimizer step.

        Raises:
            TrainingError: a loss or the gradient is not finite; nothing was applied.
            RecordError: a sample is unusable; nothing was applied.
        """
        started = time.perf_counter()
        for sample in samples:
            check(sample, self.policy.vocabulary, self.policy.max_length)
        if not any(map(has_signal, samples)):
            return StepMetrics(
                self.step,
                skipped=_why_nothing(samples),
                num_samples=len(samples),
                zero_variance_rate=zero_variance_rate,
            )
        chosen = [sample for sample in samples if self._is_needed(sample)]
        totals = terms.normalizers(samples)
        packs = pack(
            [sample.input_ids_T for sample in chosen],
            self.settings.max_pack_tokens,
            self.settings.num_threads or 1,
            self.policy.settings.device,
        )
        sums = Sums()
        try:
            for gradient, part in self._computed(packs, chosen, totals):
                sums.add(part)
                self._accumulate(gradient)
            grad_norm = self._apply()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return replace(
            metrics_of(sums),
            step=self.step,
            grad_norm=grad_norm,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            num_packs=len(packs),
            num_computed_tokens=sum(len(tree.input_ids_N) for tree in packs),
            num_pg_tokens=totals.pg_tokens,
            zero_variance_rate=zero_variance_rate,
            **described(samples, chosen, time.perf_counter() - started),
        )

    def _is_needed(self, sample: Sample) -> bool:
        """Whether the sample adds to the loss; one with zero advantages still counts in denominators."""
        is_penalised = self.settings.loss.reference_kl != 0 and sample.advantages_T is not None
        return is_penalised or has_signal(sample)

    def _computed(
        self, packs: Sequence[Pack], samples: Sequence[Sample], totals: Normalizers
    ) -> Iterator["_Part"]:
        """Gradient and sums of each pack, in order."""
        if self.settings.num_threads is None:
            yield from (self._compute(tree, samples, totals) for tree in packs)
            return
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        workers = ThreadPoolExecutor(self.settings.num_threads, "pack")
        try:
            yield from workers.map(lambda tree: self._compute(tree, samples, totals), packs)
        finally:
            workers.shutdown(cancel_futures=True)
            torch.set_num_threads(before)

    def _accumulate(self, gradient: Sequence[Tensor | None]) -> None:
        for parameter, part in zip(self.parameters.values(), gradient, strict=True):
            if part is not None:
                parameter.grad = part if parameter.grad is None else parameter.grad.add_(part)

    def _compute(self, tree: Pack, samples: Sequence[Sample], totals: Normalizers) -> "_Part":
        """Forward and backward of one pack."""
        settings = self.settings.loss
        streams = collect(samples, tree, totals, settings)
        with self.policy.arithmetic():
            found = self._logprobs(tree, streams)
            reference = None
            if settings.reference_kl and len(streams.pg.ids_E):
                with torch.no_grad(), self.policy.without_adapter():
                    reference = self._logprobs(tree, streams).pg
        pg = terms.policy_gradient(found.pg, streams.pg_entries, settings, reference)
        ce = terms.cross_entropy(found.ce, streams.ce_weights_E, totals.ce_tokens)
        kl = terms.teacher_kl(
            found.kl, streams.kl_teacher_E, streams.kl_weights_E, totals.kl_tokens
        ) + terms.teacher_topk_kl(
            found.topk, streams.topk_teacher_EK, streams.topk_weights_E, totals.kl_tokens
        )
        total = pg.loss + ce + kl
        if not bool(total.isfinite()):
            raise TrainingError(_not_finite(tree, samples, streams, found))
        gradient = torch.autograd.grad(total, list(self.parameters.values()), allow_unused=True)
        part = Sums(
            pg=float(pg.loss.detach()),
            ce=float(ce.detach()),
            kl=float(kl.detach()),
            reference_kl=pg.reference_kl,
            num_clipped=pg.num_clipped,
            num_pg=len(found.pg),
            entropy=float(found.entropy_R.sum()),
            num_rows=len(found.entropy_R),
            num_trained=found.num_tokens,
        )
        compare(found.pg.detach(), streams.pg_entries.old_logprobs_E, part)
        return _Part(gradient, part)

    def _logprobs(self, tree: Pack, streams: PackStreams) -> "_Found":
        """Log-probabilities of all requests of a pack, with one row of logits per predicting node."""
        requests = [streams.pg, streams.ce, streams.kl, streams.topk]
        width = streams.topk_ids_EK.shape[1]
        topk_nodes = streams.topk.nodes_E.repeat_interleave(width)
        # With a temperature, a node has one row for sampled tokens and another for the rest.
        shift = len(tree.input_ids_N) if self.settings.temperature != 1.0 else 0
        nodes_Q = torch.cat(
            [streams.pg.nodes_E + shift, streams.ce.nodes_E, streams.kl.nodes_E, topk_nodes]
        )
        ids_Q = torch.cat(
            [streams.pg.ids_E, streams.ce.ids_E, streams.kl.ids_E, streams.topk_ids_EK.flatten()]
        )
        rows_R, row_of_Q = nodes_Q.unique(return_inverse=True)
        order_Q = row_of_Q.argsort(stable=True)
        hidden_RD = self.policy.hidden(tree)[rows_R % len(tree.input_ids_N)]
        if shift:
            is_sampled = (rows_R >= shift).unsqueeze(-1)
            hidden_RD = torch.where(is_sampled, hidden_RD / self.settings.temperature, hidden_RD)
        picked, entropy_R = PickLogprobs.apply(
            hidden_RD, self.policy.head_weight, row_of_Q[order_Q], ids_Q[order_Q]
        )
        logprobs_Q = picked[order_Q.argsort()]
        sizes = [len(each.ids_E) for each in requests[:3]]
        pg, ce, kl, topk = logprobs_Q.split([*sizes, len(topk_nodes)])
        places = [each.samples_E * len(tree.input_ids_N) + each.nodes_E for each in requests]
        num_tokens = len(torch.cat(places).unique())
        return _Found(pg, ce, kl, topk.view(streams.topk_ids_EK.shape), entropy_R, num_tokens)

    def _apply(self) -> float:
        grad_norm = torch.nn.utils.clip_grad_norm_(
            self.parameters.values(), self.settings.max_grad_norm
        )
        if not bool(grad_norm.isfinite()):
            names = [
                name
                for name, each in self.parameters.items()
                if each.grad is not None and not bool(each.grad.isfinite().all())
            ]
            raise TrainingError(
                f"the gradient of step {self.step + 1} is {float(grad_norm)}: first bad parameter "
                f"{names[0] if names else 'none, the norm overflowed'!r}; nothing was applied"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.optimizer.step()
        self.step += 1
        return float(grad_norm)


@dataclass(frozen=True, slots=True)
class _Found:
    """Log-probabilities by term, in the order of the requests."""

    pg: Tensor
    ce: Tensor
    kl: Tensor
    topk: Tensor
    entropy_R: Tensor
    num_tokens: int


def _why_nothing(samples: Sequence[Sample]) -> str:
    if not samples:
        return "no samples"
    with_credit = sum(sample.advantages_T is not None for sample in samples)
    return (
        f"nothing to learn from {len(samples)} samples: {with_credit} carry advantages, all of them zero, "
        "and no token has a cross-entropy or KL weight"
    )


def _not_finite(tree: Pack, samples: Sequence[Sample], streams: PackStreams, found: _Found) -> str:
    pairs: list[tuple[Requests, Tensor]] = [
        (streams.pg, found.pg),
        (streams.ce, found.ce),
        (streams.kl, found.kl),
    ]
    bad = {int(place) for each, values in pairs for place in each.samples_E[~values.isfinite()]}
    places = sorted(bad) or range(len(tree.samples))
    ids = sorted({samples[tree.samples[place]].trajectory_id for place in places})
    return (
        f"the loss is not finite on trajectories {', '.join(map(repr, ids))}: nothing was applied; "
        "lower the learning rate, or look at their streams"
    )


def epochs(
    samples: Sequence[Sample],
    size: int,
    num_epochs: int,
    seed: int,
    replayed: Sequence[Sample] = (),
) -> Iterator[list[Sample]]:
    """Batches for imitation: every epoch once through all samples in a new order.

    `replayed`: samples shown once in all; every epoch takes its share of them along.

    Our choice: batches are filled in shuffled order, so prefix sharing happens inside a batch only.
    """
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(num_epochs):
        shown = [*samples, *replayed[epoch::num_epochs]]
        order = torch.randperm(len(shown), generator=generator).tolist()
        for start in range(0, len(order), size):
            yield [shown[place] for place in order[start : start + size]]

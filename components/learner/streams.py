"""From samples to the log-probabilities the loss asks for: which node predicts which token, for which term.

The token at place t is predicted by the node of the token before it. A request is one (node, token id); each term has
its own slice of requests, so logits are formed only where some stream is non-zero.

A token asks for the policy-gradient term if its advantage is non-zero; with a sequence-level ratio or a reference
penalty all sampled tokens of the sample ask, because they enter the mean or the penalty.
Shapes: _T tokens of one sample, _Q requests of one pack, _E entries of one term, _K top tokens of the teacher.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from components.errors import Misaligned, RecordError, TrainingError
from components.learner.loss import LossSettings, Normalizers, PgEntries, token_weight
from components.learner.packing import Pack
from components.records import Sample


def check(sample: Sample, vocabulary: int, max_length: int) -> None:
    """Refuse a sample that would train something else than it says.

    Raises:
        Misaligned: a stream has another length than the tokens.
        TrainingError: a stream holds NaN or infinity.
        RecordError: the tokens cannot be those of this model, or loss stands where no token was sampled.
    """
    who = f"trajectory {sample.trajectory_id!r}"
    length = len(sample.input_ids_T)
    if not 1 <= length <= max_length:
        raise RecordError(f"{who} has {length} tokens: expected 1 to {max_length}")
    if not 0 <= min(sample.input_ids_T) <= max(sample.input_ids_T) < vocabulary:
        raise RecordError(f"{who} has token ids outside the vocabulary of {vocabulary}")
    for stream in fields(Sample)[1:]:
        values = getattr(sample, stream.name)
        if values is not None and len(values) != length:
            raise Misaligned(
                f"{stream.name} of {who} must match its tokens: got {len(values)}, expected {length}"
            )
    for name in (
        "advantages_T",
        "ce_weights_T",
        "kl_weights_T",
        "logprobs_T",
        "teacher_logprobs_T",
    ):
        values = getattr(sample, name)
        bad = next((t for t, value in enumerate(values or ()) if not math.isfinite(value)), None)
        if bad is not None:
            raise TrainingError(
                f"{name} of {who} is {values[bad]!r} at token {bad}: expected a finite number; nothing was applied"
            )
    _check_places(sample, who)


def _check_places(sample: Sample, who: str) -> None:
    for weights in (sample.advantages_T, sample.ce_weights_T, sample.kl_weights_T):
        if sample.action_mask_T[0] or (weights and weights[0] != 0):
            raise RecordError(f"token 0 of {who} carries loss, but nothing comes before it")
    pairs = zip(sample.advantages_T or (), sample.action_mask_T, strict=False)
    stray = next((t for t, (value, sampled) in enumerate(pairs) if value and not sampled), None)
    if stray is not None:
        raise RecordError(
            f"{who} has an advantage at token {stray}, which the policy did not sample"
        )
    if any(sample.kl_weights_T or ()) and not (sample.teacher_topk or sample.teacher_logprobs_T):
        raise RecordError(f"{who} has KL weights, but neither teacher_topk nor teacher_logprobs_T")


def has_signal(sample: Sample) -> bool:
    return any(
        map(any, filter(None, (sample.advantages_T, sample.ce_weights_T, sample.kl_weights_T)))
    )


class Requests(NamedTuple):
    """Tokens of one term: the node that predicts each, and its id."""

    nodes_E: Tensor
    ids_E: Tensor
    samples_E: Tensor
    """Place of each token's sample in the pack."""


@dataclass(frozen=True, slots=True)
class PackStreams:
    """What the loss needs of one pack."""

    pg: Requests
    pg_entries: PgEntries
    ce: Requests
    ce_weights_E: Tensor
    kl: Requests
    kl_weights_E: Tensor
    kl_teacher_E: Tensor
    topk: Requests
    """Tokens with a teacher's top tokens; `topk_ids_EK` are asked for instead of `ids_E`."""
    topk_weights_E: Tensor
    topk_ids_EK: Tensor
    topk_teacher_EK: Tensor


def collect(
    samples: Sequence[Sample], pack: Pack, totals: Normalizers, settings: LossSettings
) -> PackStreams:
    chosen = [samples[place] for place in pack.samples]
    device = pack.input_ids_N.device
    flat = _Flat(
        torch.cat([path[:-1] for path in pack.nodes]),
        torch.cat([pack.input_ids_N[path[1:]] for path in pack.nodes]),
        torch.repeat_interleave(
            torch.arange(len(chosen), device=device),
            torch.tensor([len(path) - 1 for path in pack.nodes], device=device),
        ),
    )

    def stream(values: Callable[[Sample], Sequence[float] | None], missing: float) -> Tensor:
        rows = [(values(sample) or (missing,) * len(sample.input_ids_T))[1:] for sample in chosen]
        flat_values = [value for row in rows for value in row]
        return torch.tensor(flat_values, dtype=torch.float32, device=device)

    advantages = stream(lambda sample: sample.advantages_T, 0.0)
    wanted = stream(lambda sample: _wants_credit(sample, settings), 0.0) != 0
    scales = torch.tensor(
        [token_weight(sum(sample.action_mask_T), totals, settings) for sample in chosen],
        device=device,
    )
    pg = flat.where(wanted)
    ce_weights = stream(lambda sample: sample.ce_weights_T, 0.0)
    kl_weights = stream(lambda sample: sample.kl_weights_T, 0.0)
    in_topk = stream(lambda s: [1.0] * len(s.input_ids_T) if s.teacher_topk else None, 0.0) != 0
    topk_at = (kl_weights != 0) & in_topk
    kl_at = (kl_weights != 0) & ~in_topk
    topk_ids, topk_teacher = _teacher_table(chosen, topk_at, device)
    return PackStreams(
        pg=pg,
        pg_entries=PgEntries(
            stream(lambda sample: sample.logprobs_T, math.nan)[wanted],
            advantages[wanted],
            scales[pg.samples_E],
            pg.samples_E,
        ),
        ce=flat.where(ce_weights != 0),
        ce_weights_E=ce_weights[ce_weights != 0],
        kl=flat.where(kl_at),
        kl_weights_E=kl_weights[kl_at],
        kl_teacher_E=stream(lambda sample: sample.teacher_logprobs_T, 0.0)[kl_at],
        topk=flat.where(topk_at),
        topk_weights_E=kl_weights[topk_at],
        topk_ids_EK=topk_ids,
        topk_teacher_EK=topk_teacher,
    )


class _Flat(NamedTuple):
    """All predicted tokens of a pack, sample after sample."""

    nodes: Tensor
    ids: Tensor
    samples: Tensor

    def where(self, wanted: Tensor) -> Requests:
        return Requests(self.nodes[wanted], self.ids[wanted], self.samples[wanted])


def _wants_credit(sample: Sample, settings: LossSettings) -> Sequence[float] | None:
    if sample.advantages_T is None or (settings.reference_kl == 0 and not any(sample.advantages_T)):
        return None
    if settings.ratio_level == "sequence" or settings.reference_kl != 0:
        return [float(sampled) for sampled in sample.action_mask_T]
    return sample.advantages_T


def _teacher_table(
    samples: Sequence[Sample], wanted: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities of the teacher's top tokens, padded with -inf to the widest row."""
    rows = [
        row
        for sample in samples
        for row in (sample.teacher_topk or ((),) * len(sample.input_ids_T))[1:]
    ]
    chosen = [row for row, on in zip(rows, wanted.tolist(), strict=True) if on]
    width = max(map(len, chosen), default=0)
    ids = [[token for token, _ in row] + [0] * (width - len(row)) for row in chosen]
    logprobs = [[value for _, value in row] + [-math.inf] * (width - len(row)) for row in chosen]
    shape = (len(chosen), width)
    return (
        torch.tensor(ids, dtype=torch.long, device=device).reshape(shape),
        torch.tensor(logprobs, dtype=torch.float32, device=device).reshape(shape),
    )

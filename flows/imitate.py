"""Imitate: supervised fine-tuning on what the bundle holds, in steps that survive a kill."""

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from components.errors import RecordError
from components.learner import checkpoint, heap
from components.learner.learner import Learner, LearnerSettings, StepMetrics, epochs
from components.protocols import Renderer
from components.records import Bundle, Example, Sample
from components.serial import digest
from components.tokens import imitation_sample, with_memory
from flows import policies
from flows.remember import recall_blocks
from flows.resources import Resources
from flows.stage import Deadline

CHECKPOINT_EVERY = 8


def imitation_samples(
    r: Resources, bundle: Bundle, renderer: Renderer, revision: int | None
) -> list[Sample]:
    """Samples of a bundle's examples, a share of them with the lessons that serving would recall.

    An example that cannot be rendered, or is longer than what the policy sees in service, is left out and named.
    """
    limit = r.settings.model.max_context
    wanted = [example for example in bundle.examples if example.kind != "preference"]
    blocks = recall_blocks(r, revision, [opening_of(example) for example in wanted])
    samples: list[Sample] = []
    for example, block in zip(wanted, blocks, strict=True):
        dropped = Random(digest([r.settings.seed, example.id])).random() < r.settings.memory.dropout
        shown = example if dropped else _with_lessons(example, block)
        try:
            sample = imitation_sample(shown, renderer, tools_of(r))
        except RecordError as error:
            r.log(f"example {example.id[:12]} is left out: {error}")
            continue
        if len(sample.input_ids_T) <= limit:
            samples.append(sample)
        else:
            r.log(
                f"example {example.id[:12]} is left out: it has {len(sample.input_ids_T)} tokens, "
                f"model.max_context is {limit}"
            )
    return samples


def opening_of(example: Example) -> str:
    """The user's first words, which memory is asked about."""
    return next((message.text for message in example.messages if message.role == "user"), "")


def tools_of(r: Resources) -> tuple[dict[str, Any], ...]:
    """Tools offered to the agent."""
    return policies.world_of(r.settings).tools if r.settings.environment else ()


def _with_lessons(example: Example, block: str) -> Example:
    messages = with_memory(example.messages, block)
    moved = len(messages) - len(example.messages)
    return replace(
        example, messages=messages, targets=tuple(place + moved for place in example.targets)
    )


def learner_settings(r: Resources, lr: float, warmup: int, **more: Any) -> LearnerSettings:
    """Settings of the learner that every phase shares."""
    section = r.settings.train
    return LearnerSettings(
        learning_rate=lr,
        warmup_steps=warmup,
        weight_decay=section.weight_decay,
        max_grad_norm=section.max_grad_norm,
        max_pack_tokens=section.max_tokens_per_pack,
        num_threads=r.threads,
        **more,
    )


def imitation_batches(
    r: Resources, samples: Sequence[Sample], known: Container[str]
) -> list[list[Sample]]:
    """The batches of an imitation phase. `known`: trajectories that the policy imitated on an earlier night."""
    section = r.settings.train.sft
    old = [each for each in samples if section.replay_once and each.trajectory_id in known]
    new = [each for each in samples if not (section.replay_once and each.trajectory_id in known)]
    return list(epochs(new, section.batch, section.epochs, r.settings.seed, old))


def imitate(
    r: Resources,
    policy: Any,
    batches: Sequence[Sequence[Sample]],
    folder: Path,
    deadline: Deadline,
    what: str,
) -> tuple[int, list[StepMetrics]]:
    """Train the policy in place, a step per batch; continues from the newest complete checkpoint in `folder`.

    Returns the number of steps taken in all, and the figures of those taken since the checkpoint.
    """
    section = r.settings.train.sft
    rate = learner_settings(r, section.lr, section.warmup_steps, total_steps=len(batches) or None)
    learner = Learner(policy, rate)
    found = checkpoint.latest(folder)
    for skipped in found.skipped:
        r.log(skipped.reason)
    if found.path is not None:
        checkpoint.resume(found.path, learner)
        r.log(f"continuing from {found.path.name}")
    done: list[StepMetrics] = []
    for batch in r.track(batches[learner.step :], what):
        deadline.check(f"{what}, step {learner.step + 1} of {len(batches)}")
        done.append(learner.update(batch))
        if learner.step % CHECKPOINT_EVERY == 0:
            checkpoint.save(folder, learner)
    heap.release()
    return learner.step, done

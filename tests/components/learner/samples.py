"""Samples over the tiny model's vocabulary, seeded."""

import random

from components.records import Sample


def rollouts(num=4, prompt=12, completion=5, seed=0, advantage=lambda i: 1.0 if i % 2 else -1.0):
    """`num` rollouts of one prompt; sampled tokens carry advantages and log-probability -5."""
    rng = random.Random(seed)
    head = tuple(rng.randrange(256) for _ in range(prompt))
    made = []
    for index in range(num):
        tail = tuple(rng.randrange(256) for _ in range(completion))
        mask = (False,) * prompt + (True,) * completion
        made.append(
            Sample(
                f"t-{index}",
                input_ids_T=head + tail,
                action_mask_T=mask,
                logprobs_T=tuple(-5.0 if on else 0.0 for on in mask),
                advantages_T=tuple(advantage(index) if on else 0.0 for on in mask),
            )
        )
    return made


def demonstration(ids, weights, name="d"):
    return Sample(
        name,
        input_ids_T=tuple(ids),
        action_mask_T=tuple(weight != 0 for weight in weights),
        ce_weights_T=tuple(map(float, weights)),
    )

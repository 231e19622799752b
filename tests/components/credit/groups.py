"""Small groups for credit tests: one sample per trajectory, with a prompt, two turns and an observation between them."""

from collections.abc import Sequence

from components.records import Group, Sample, Task, Trajectory

MASK = (False, True, True, False, True)
"""Prompt, turn 0 of two tokens, observation, turn 1 of one token."""


def group(returns: Sequence[float | None], name: str = "p") -> tuple[Group, list[Sample]]:
    ids = [f"{name}-{index}" for index in range(len(returns))]
    task = Task(name, instruction="-", environment="toy", params={})
    trajectories = tuple(Trajectory(each, agent="toy", turns=()) for each in ids)
    samples = [
        Sample(
            each,
            input_ids_T=(1, 2, 3, 4, 5),
            action_mask_T=MASK,
            logprobs_T=(0.0, -0.1, -0.2, 0.0, -0.3),
            turn_index_T=(-1, 0, 0, -1, 1),
        )
        for each in ids
    ]
    return Group(task, trajectories, {"outcome": tuple(returns)}), samples


def advantages(samples: Sequence[Sample]) -> list[float | None]:
    """The one advantage of each trajectory's sampled tokens; None where there is no stream."""
    found: list[float | None] = []
    for sample in samples:
        if sample.advantages_T is None:
            found.append(None)
            continue
        values = {
            value for value, on in zip(sample.advantages_T, sample.action_mask_T, strict=True) if on
        }
        assert len(values) == 1, f"tokens of one trajectory differ: {values}"
        found.append(values.pop())
    return found

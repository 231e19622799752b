"""Token streams of trajectories as flat arrays, and back, bit for bit.

One set of arrays holds a batch of trajectories. A turn's prompt usually repeats the previous turn's prompt and
completion; that shared beginning is stored as its length alone, so long conversations take linear space.

Shapes: per turn `*_num_N` (how many tokens follow in the flat array, -1 for None) and `shared_N`; per trajectory
`first_turn_P` (P + 1 numbers); flat `prompt_ids`, `completion_ids` (int32) and `logprobs` (float64).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from components.errors import Misaligned
from components.records import Trajectory, Turn

Arrays = dict[str, np.ndarray[Any, Any]]


class Streams(NamedTuple):
    prompt_ids: tuple[int, ...] | None
    completion_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None


NOTHING = Streams(None, None, None)


def has_tokens(trajectory: Trajectory) -> bool:
    """Whether any turn carries a token stream."""
    return any(_streams(turn) != NOTHING for turn in trajectory.turns)


def without_tokens(trajectory: Trajectory) -> Trajectory:
    turns = tuple(
        turn if _streams(turn) == NOTHING else dataclasses.replace(turn, **NOTHING._asdict())
        for turn in trajectory.turns
    )
    return dataclasses.replace(trajectory, turns=turns)


def _streams(turn: Turn) -> Streams:
    return Streams(turn.prompt_ids, turn.completion_ids, turn.logprobs)


def pack(trajectories: Sequence[Trajectory]) -> Arrays:
    """The token streams of a batch.

    Raises:
        Misaligned: a turn has another number of log-probabilities than completion tokens.
    """
    flat: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    nums: dict[str, list[int]] = {name: [] for name in flat}
    shared_N: list[int] = []
    first_turn_P = [0]
    for trajectory in trajectories:
        before: tuple[int, ...] = ()
        for turn in trajectory.turns:
            streams = _streams(turn)
            _check(trajectory.id, turn)
            shared = _shared(before, streams.prompt_ids)
            shared_N.append(shared)
            for name, values in streams._asdict().items():
                kept = values[shared:] if name == "prompt_ids" and values is not None else values
                nums[name].append(-1 if kept is None else len(kept))
                flat[name].extend(kept or ())
            before = (streams.prompt_ids or ()) + (streams.completion_ids or ())
        first_turn_P.append(len(shared_N))
    arrays: Arrays = {f"{name}_num_N": np.array(num, np.int32) for name, num in nums.items()}
    arrays |= {name: np.array(flat[name], np.int32) for name in ("prompt_ids", "completion_ids")}
    arrays["logprobs"] = np.array(flat["logprobs"], np.float64)
    arrays["shared_N"] = np.array(shared_N, np.int32)
    arrays["first_turn_P"] = np.array(first_turn_P, np.int64)
    return arrays


def _check(trajectory_id: str, turn: Turn) -> None:
    if turn.logprobs is None:
        return
    expected = 0 if turn.completion_ids is None else len(turn.completion_ids)
    if len(turn.logprobs) != expected:
        raise Misaligned(
            f"logprobs of turn {turn.index} of trajectory {trajectory_id!r} must match its completion "
            f"tokens: got {len(turn.logprobs)}, expected {expected}"
        )


def _shared(before: tuple[int, ...], prompt_ids: tuple[int, ...] | None) -> int:
    """Length of `before` when the prompt begins with it, else 0."""
    is_prefix = prompt_ids is not None and prompt_ids[: len(before)] == before
    return len(before) if is_prefix else 0


def unpack(
    trajectories: Sequence[Trajectory], rows: Sequence[int], arrays: Arrays
) -> list[Trajectory]:
    """The trajectories with the token streams of these rows of the batch."""
    starts = {
        name: np.concatenate(
            [[0], np.cumsum(np.maximum(arrays[f"{name}_num_N"], 0), dtype=np.int64)]
        )
        for name in Streams._fields
    }
    made: list[Trajectory] = []
    for trajectory, row in zip(trajectories, rows, strict=True):
        first = int(arrays["first_turn_P"][row])
        before: tuple[int, ...] = ()
        turns: list[Turn] = []
        for offset, turn in enumerate(trajectory.turns):
            values = [_slice(arrays, starts, name, first + offset) for name in Streams._fields]
            streams = Streams(*values)
            if streams.prompt_ids is not None:
                shared = before[: int(arrays["shared_N"][first + offset])]
                streams = streams._replace(prompt_ids=shared + streams.prompt_ids)
            turns.append(dataclasses.replace(turn, **streams._asdict()))
            before = (streams.prompt_ids or ()) + (streams.completion_ids or ())
        made.append(dataclasses.replace(trajectory, turns=tuple(turns)))
    return made


def _slice(arrays: Arrays, starts: Arrays, name: str, turn: int) -> tuple[Any, ...] | None:
    num = int(arrays[f"{name}_num_N"][turn])
    start = int(starts[name][turn])
    return None if num < 0 else tuple(arrays[name][start : start + num].tolist())

"""Where failures went: how the champion's rollouts ended against how the challenger's ended, on the same tasks and seeds.

    confusion[before][after] = number of (task, seed) pairs

An ending is `solved`, the kind of failure that the miner finds, `unexplained` for a failure in which it finds none, or
`not judged`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from components.records import FailureCase, Trajectory

SOLVED = "solved"
UNEXPLAINED = "unexplained"
NOT_JUDGED = "not judged"
Confusion = dict[str, dict[str, int]]


def endings(trajectories: Sequence[Trajectory], cases: Sequence[FailureCase]) -> list[str]:
    """How each of these trajectories ended. `cases`: what the miner found in them."""
    kinds = {case.trajectory_id: case.kind for case in cases}
    return [_ending(item, kinds.get(item.id, UNEXPLAINED)) for item in trajectories]


def _ending(item: Trajectory, failure: str) -> str:
    if item.outcome is None:
        return NOT_JUDGED
    return SOLVED if item.outcome else failure


def confuse(before: Sequence[str], after: Sequence[str]) -> Confusion:
    """Counts of the pairs, most frequent rows first."""
    pairs = Counter(zip(before, after, strict=True))
    return {
        old: {new: pairs[old, new] for new, _ in Counter(after).most_common() if pairs[old, new]}
        for old, _ in Counter(before).most_common()
    }


def columns(confusion: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The endings of the challenger, most frequent first."""
    totals: Counter[str] = Counter()
    for row in confusion.values():
        totals.update(row)
    return [name for name, _ in totals.most_common()]

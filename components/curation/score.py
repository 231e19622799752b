"""What a strategy is worth, and whether a rewrite replaces its parent.

    J = P - 0.3 C,   C = tanh( ln(1 + retained turns) / ln(1 + reference turns) )

P is the success rate on held-out failures of the base model trained on the strategy's bundle, measured by the flow with
the same base, recipe and seeds for every candidate; a strategy without a P has no J and cannot win. Cost enters through
a logarithm: a quarter of the turns is worth about 0.022 of success, so efficiency never pays for a real loss.

    effectiveness   accepted when P rises with a one-sided sign test at p < 0.2 or by two tasks, and at most 1.5 times
                    the parent's turns are retained
    efficiency      accepted when J rises, P is at most 0.01 below the parent's, and every failure mode of the parent
                    keeps three examples (or all that it had, if fewer)

Source: arXiv 2607.06140 (J and C, factor 0.3); the acceptance rules are our choice, as are: a retained turn is one that
carries loss, the reference is what strategy 0 retains, and "cost" in the first rule is the number of retained turns.
Degenerate cases: no retained turn costs 0; a parent without turns sets no limit; ties of the sign test are dropped.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from components.records import Bundle

LAMBDA = 0.3


def retained_turns(bundle: Bundle) -> int:
    """Turns that carry loss. Rollout requests have no turns before they are rolled out."""
    return sum(len(example.targets) for example in bundle.examples)


def cost(num_turns: int, reference_turns: int) -> float:
    """C. Raises ValueError unless the reference is positive and the turns are not negative."""
    if reference_turns <= 0 or num_turns < 0:
        raise ValueError(
            f"expected turns >= 0 and a reference > 0, got {num_turns!r} and {reference_turns!r}"
        )
    return math.tanh(math.log1p(num_turns) / math.log1p(reference_turns))


def worth(success: float, num_turns: int, reference_turns: int) -> float:
    """J."""
    return success - LAMBDA * cost(num_turns, reference_turns)


@dataclass(frozen=True, slots=True)
class Trial:
    """What the held-out failures said about one strategy."""

    scores: dict[str, float]
    """Held-out task -> success in [0, 1], averaged over seeds."""
    num_turns: int
    """Retained turns."""
    per_mode: dict[str, int]
    """Failure mode -> examples."""

    @property
    def success(self) -> float:
        """P."""
        return math.fsum(self.scores.values()) / len(self.scores)


class Acceptance(NamedTuple):
    accepted: bool
    reason: str


def exemplars(bundle: Bundle) -> dict[str, int]:
    """Failure mode -> examples of a bundle."""
    return dict(Counter(mode for example in bundle.examples for mode in example.mode_ids))


def accept(
    stage: Literal["effectiveness", "efficiency"], parent: Trial, child: Trial, reference_turns: int
) -> Acceptance:
    """Whether the child replaces its parent.

    Raises:
        ValueError: they were not tried on the same tasks, or on none.
    """
    if not parent.scores or parent.scores.keys() != child.scores.keys():
        raise ValueError(
            f"parent and child must be tried on the same held-out tasks, at least one: "
            f"got {len(parent.scores)} and {len(child.scores)} tasks"
        )
    if stage == "effectiveness":
        return _more_effective(parent, child)
    return _more_efficient(parent, child, reference_turns)


def _more_effective(parent: Trial, child: Trial) -> Acceptance:
    gains = [child.scores[task] - parent.scores[task] for task in parent.scores]
    wins, losses = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    gained = math.fsum(gains)
    p = sign_test(wins, losses)
    seen = f"{gained:+.2f} of {len(gains)} tasks, {wins} better, {losses} worse, p = {p:.3f}"
    if parent.num_turns and child.num_turns > 1.5 * parent.num_turns:
        return Acceptance(
            False, f"{seen}, but {child.num_turns} turns are over 1.5 x {parent.num_turns}"
        )
    if gained > 0 and (p < 0.2 or gained >= 2):
        return Acceptance(True, seen)
    return Acceptance(False, f"{seen}: expected a gain with p < 0.2, or of two tasks")


def _more_efficient(parent: Trial, child: Trial, reference_turns: int) -> Acceptance:
    before = worth(parent.success, parent.num_turns, reference_turns)
    after = worth(child.success, child.num_turns, reference_turns)
    seen = f"J {before:.4f} -> {after:.4f}, P {parent.success:.3f} -> {child.success:.3f}"
    if after <= before:
        return Acceptance(False, f"{seen}: J does not rise")
    if child.success < parent.success - 0.01:
        return Acceptance(False, f"{seen}: P falls by more than 0.01")
    thin = _thinned(parent.per_mode, child.per_mode)
    if thin:
        return Acceptance(
            False, f"{seen}: failure mode {thin!r} keeps {child.per_mode.get(thin, 0)} examples"
        )
    return Acceptance(True, seen)


def _thinned(before: Mapping[str, int], after: Mapping[str, int]) -> str | None:
    """The first failure mode that lost too many examples."""
    return next(
        (mode for mode in sorted(before) if after.get(mode, 0) < min(3, before[mode])), None
    )


def sign_test(wins: int, losses: int) -> float:
    """One-sided exact p: the chance of so many wins or more among the tasks that differ."""
    decided = wins + losses
    return sum(math.comb(decided, k) for k in range(wins, decided + 1)) / 2**decided

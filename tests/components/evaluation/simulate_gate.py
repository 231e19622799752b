"""Challengers that never existed, to see how often the gate promotes them.

    python -m tests.components.evaluation.simulate_gate --num 10000

Each world has tasks of its own difficulty (success probabilities from a Beta(0.8, 0.8) law, so many are nearly always
solved or nearly never) and five overlapping skills. Three kinds of no improvement: `same` (the challenger is the
champion), `shuffled` (better on half of the tasks and worse on the other half, by as much), `worse` (two points lower).
"""

import argparse
import time
from collections import Counter
from random import Random
from typing import Literal, NamedTuple

import numpy as np

from components.evaluation.report import Arm, build_report
from components.evaluation.strict import Strict
from components.records import Decision, Lineage

Kind = Literal["same", "shuffled", "worse", "better"]
KINDS: tuple[Kind, ...] = ("same", "shuffled", "worse")
FACTS: dict[str, bool | None] = {"delivery": True, "disjoint": True, "no_older_suites": True}


class World(NamedTuple):
    num_tasks: int = 100
    num_seeds: int = 3


def challenger(kind: Kind, world: World, seed: int) -> Decision:
    """The gate's decision about one simulated challenger."""
    draws = np.random.default_rng(seed)
    before_P = draws.beta(0.8, 0.8, world.num_tasks)
    shift_P = {
        "same": np.zeros(world.num_tasks),
        "shuffled": np.where(draws.permutation(world.num_tasks) % 2, 0.2, -0.2),
        "worse": np.full(world.num_tasks, -0.02),
        "better": np.full(world.num_tasks, 0.2),
    }[kind]
    if kind == "shuffled":  # room for the shift on both sides, so that its mean stays zero
        before_P = 0.2 + 0.6 * before_P
    arms = [
        draws.random((world.num_tasks, world.num_seeds)) < np.clip(chance_P, 0, 1)[:, None]
        for chance_P in (before_P, before_P + shift_P)
    ]
    scores = [
        {f"t{place:03d}": tuple(map(float, row)) for place, row in enumerate(arm)} for arm in arms
    ]
    slices = {
        f"skill:{skill}": [
            f"t{place:03d}" for place in range(world.num_tasks) if place % (skill + 2) == 0
        ]
        for skill in range(5)
    }
    lineage = Lineage((), "tests", "1", "rule", "", seed=Random(seed).getrandbits(30))
    report = build_report(
        Arm("a", scores[0]), Arm("b", scores[1]), slices, lineage, num_resamples=1000
    )
    return Strict(min_tasks=world.num_tasks).decide(report.report, FACTS)


def promotions(kind: Kind, num: int, world: World, first_seed: int = 0) -> int:
    """How many of these challengers are promoted."""
    return sum(challenger(kind, world, first_seed + seed).accepted for seed in range(num))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=2000, help="challengers without improvement")
    num = parser.parse_args().num
    began = time.perf_counter()
    counts: Counter[Kind] = Counter()
    for place, kind in enumerate(KINDS):
        share = num // len(KINDS) + (place < num % len(KINDS))
        counts[kind] = promotions(kind, share, World(), place * num)
        print(f"{kind:9} {counts[kind]:5} of {share} promoted")
    print(
        f"false promotions: {counts.total()} of {num} = {counts.total() / num:.2%} (promised: at most 5%)"
    )
    found = promotions("better", 200, World(), 10 * num)
    print(f"real gain of up to 20 points on 100 tasks, 3 seeds: {found} of 200 promoted")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

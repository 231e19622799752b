"""Runs a strategy over a night's records and returns the bundle it makes.

    records -> corpus (`_corpus.py`) -> strategy in its sandbox (`_sandbox.py`) -> references -> bundle (`_contract.py`)

The same records, strategy and seed give the same bundle, byte for byte. An empty corpus gives an empty bundle.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from components.curation._contract import Curated, bundle_from
from components.curation._corpus import build_corpus
from components.curation._sandbox import Context, Limits, run_strategy
from components.records import CurationStrategy, FailureCase, Lineage, Trajectory
from components.serial import digest


def apply_strategy(
    strategy: CurationStrategy,
    trajectories: Sequence[Trajectory],
    cases: Sequence[FailureCase],
    seed: int = 0,
    budget: int = 2000,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Curated:
    """The strategy's bundle, with the items that the host refused. `budget`: most examples, which the strategy sees.

    Raises:
        UnsafeStrategy: the sandbox refused the program, or the program broke its contract.
        RecordError: a trajectory of another split than train.
    """
    corpus, left_out = build_corpus(trajectories, cases)
    context = Context(seed, budget, _summary(cases))
    value = run_strategy(strategy.source, corpus, context, limits)
    too_much = {item.trajectory_id for item in left_out}
    shown = [item for item in trajectories if item.id not in too_much]
    lineage = Lineage(
        (), "curation/apply", strategy.id[:12], "rule", digest([seed, context.budget]), seed
    )
    curated = bundle_from(value, strategy, shown, cases, lineage)
    bundle = replace(curated.bundle, id="", dropped=(*curated.bundle.dropped, *left_out))
    return curated._replace(bundle=replace(bundle, id=digest(bundle)))


def _summary(cases: Sequence[FailureCase]) -> tuple[dict[str, object], ...]:
    """Failures by signature, the most frequent first."""
    counts = Counter((case.signature, case.mode_id or "") for case in cases)
    return tuple(
        {"signature": signature, "mode_id": mode_id or None, "count": count}
        for (signature, mode_id), count in sorted(
            counts.items(), key=lambda item: (-item[1], item[0])
        )
    )

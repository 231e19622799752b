"""The first curation strategy: imitate what people corrected and what went well, practise what failed.

Out: infrastructure faults, cases that a reviewer dismissed, malformed actions, doubles, more than 64 examples of one
failure mode. In: the person's actions after each take-over, with the history as it was when they began, twice as heavy
where a reviewer confirmed the failure; successful conversations of the policy; a preference pair where person and policy acted on the same view; rollout requests for the
tools that failures are about; corrected conversations for memory.
"""

from components.curation._editor import Function, Step, compose
from components.records import CurationStrategy, Lineage
from components.serial import digest

TITLE = "Imitate corrections and successes, practise what failed."

STEPS = (
    Step("drop_trajectories_if", (Function("had_infrastructure_fault"), "infrastructure fault")),
    Step(
        "drop_trajectories_if",
        (Function("was_dismissed"), "its failure case was dismissed in review"),
    ),
    Step("from_corrections"),
    Step("from_successes"),
    Step("drop_targets_if", (Function("is_malformed"), "malformed assistant turn")),
    Step("dedupe", (Function("conversation"),)),
    Step("reweight", (Function("is_confirmed"), 2.0)),
    Step("cap_per_mode", (64,)),
    Step("contrast_pair", (Function("is_correction"),)),
    Step("practise"),
    Step("to_memory", (Function("is_correction"),)),
)


def strategy_zero() -> CurationStrategy:
    """Strategy 0, the parent of all others."""
    source = compose(TITLE, STEPS)
    lineage = Lineage((), "curation/strategy_zero", digest(source)[:12], "template", digest(""))
    return CurationStrategy(digest(source), source, "initial", lineage)

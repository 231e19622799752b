"""Failure cases by rules: the first wrong turn, who is at fault, and a signature, for each failed trajectory.

The first signal that speaks, in this order, makes the one case of a trajectory:

    infrastructure    the run stopped with an error of the endpoint, the engine or the loop
    tool_failure      a tool failed on its own side (5xx, timeout) and never worked again       fault: environment
    operator          a person took over: first deviation from the person's steps, see `_takeover.py`
                      `wrong_tool|<wanted tool>|issued <tool>`     `wrong_argument|<tool>|<names>`
                      `unparsable_action|<wanted tool>|<reason>`   `missing_step|<tool>|`   `extra_step|<tool>|`
                      `wrong_reply|<last tool>|`                   `disputed_verdict|<last tool>|` (fault: verifier)
    policy_violation  the environment recorded a broken rule
    malformed_call    arguments that are not one JSON object; cut by the token limit: `cut_off|<tool>|token limit`
    unanswered_call   the log goes on without the call's result                                 fault: infrastructure
    repeated_call     one call again and again, in vain
    tool_error        a tool refused the call and the agent did not recover
    edited, rejected  a person corrected or refused, without corrected turns in the log
    cut_off           stopped at the token or turn limit                                        fault: unclear
    disputed_outcome  judges of the outcome disagree                                            fault: unclear
    wrong_outcome     judged a failure without any other signal; the turn stays unknown

A success gives nothing, unless a person had to take over; an outcome that nobody knows gives nothing without a signal. No
trajectory gives two cases. The same trajectory gives the same case id on every run: it is the digest of trajectory,
signature and turn.
Our choice: the order. What is not the agent's doing comes first, so that it is never trained away; what is exact
comes before what is likely.
"""

import dataclasses
from collections.abc import Iterable, Iterator

from components.mining import _signals as signals
from components.mining._finding import Finding
from components.mining._steps import Step, shorten
from components.mining._takeover import PEOPLE, takeover
from components.plugins import plugin, version_of
from components.records import Evidence, FailureCase, Lineage, Trajectory
from components.serial import digest


@plugin
class Rules:
    repeats: int = 3
    """Equal calls in a row that make a loop, at least 2."""
    quotes: int = 3
    """Pieces of evidence kept per case, at least 1."""

    def __post_init__(self) -> None:
        if self.repeats < 2 or self.quotes < 1:
            raise ValueError(
                f"`repeats` must be at least 2 and `quotes` at least 1, got {self.repeats!r} and {self.quotes!r}"
            )

    def mine(self, trajectories: Iterable[Trajectory]) -> Iterator[FailureCase]:
        """At most one case per trajectory, in the order given."""
        version, config = version_of(self), digest(dataclasses.asdict(self))
        for trajectory in trajectories:
            finding = self._find(trajectory)
            if finding is not None:
                lineage = Lineage((trajectory.id,), "mining/rules", version, "rule", config)
                yield self._case(trajectory, finding, lineage)

    def _find(self, trajectory: Trajectory) -> Finding | None:
        helped = any(turn.executor in PEOPLE for turn in trajectory.turns)
        if trajectory.outcome is True and not helped:
            return None
        steps = signals.policy_steps(trajectory)
        for signal in self._signals():
            finding = signal(trajectory, steps)
            if finding is not None:
                return finding
            if signal is _operator and trajectory.outcome is True:
                return None
        return None

    def _signals(self) -> tuple[signals.Signal, ...]:
        def repeated_call(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
            return signals.repeated_call(trajectory, steps, self.repeats)

        return (
            signals.infrastructure,
            signals.tool_failure,
            _operator,
            signals.violation,
            signals.malformed_call,
            signals.unanswered_call,
            repeated_call,
            signals.tool_error,
            signals.correction,
            signals.cut_off,
            signals.disputed_outcome,
            signals.wrong_outcome,
        )

    def _case(self, trajectory: Trajectory, finding: Finding, lineage: Lineage) -> FailureCase:
        asked = [m.text for m in trajectory.messages if m.role == "user"][:1]
        opening = tuple(Evidence(0, shorten(f"customer: {text}")) for text in asked)
        return FailureCase(
            id=digest({"of": trajectory.id, "signature": finding.signature, "turn": finding.turn}),
            trajectory_id=trajectory.id,
            turn=finding.turn,
            fault=finding.fault,
            signature=finding.signature,
            summary=finding.summary,
            evidence=(*finding.evidence, *opening)[: self.quotes],
            lineage=lineage,
        )


def _operator(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    return takeover(trajectory)

"""A small charge for actions that cannot be read and calls that cannot be done.

    r_i = -min(max_charge, unparsable * (actions that were unparsable) + tool_error * (calls answered by an error))

Channel: `format`, in [-max_charge, 0]; added to the verified reward it ranks failures without making one a success.
None when the episode failed for a reason outside the agent. Counts come from the turns as the harness recorded them:
`error` is set on an unparsable action, `env_facts["num_tool_errors"]` is what the environment reports (none: no error).
"""

from collections.abc import Sequence

from components.plugins import plugin
from components.records import Task, Trajectory, Turn


@plugin
class Format:
    unparsable: float = 0.1
    """Charge per unparsable action, >= 0."""
    tool_error: float = 0.02
    """Charge per call that was answered by an error, >= 0."""
    max_charge: float = 0.3
    """Most that one trajectory pays, in [0, 1)."""

    def __post_init__(self) -> None:
        if min(self.unparsable, self.tool_error) < 0 or not 0 <= self.max_charge < 1:
            raise ValueError(
                f"charges must be >= 0 and max_charge in [0, 1): got {self.unparsable!r}, "
                f"{self.tool_error!r}, {self.max_charge!r}"
            )

    def score(self, task: Task, trajectories_G: Sequence[Trajectory]) -> tuple[float | None, ...]:
        return tuple(self._score(trajectory) for trajectory in trajectories_G)

    def _score(self, trajectory: Trajectory) -> float | None:
        if (trajectory.stop_reason or "").startswith("error"):
            return None
        charge = sum(map(self._charge, trajectory.turns))
        return 0.0 - min(self.max_charge, charge)

    def _charge(self, turn: Turn) -> float:
        errors = (turn.env_facts or {}).get("num_tool_errors", 0)
        return self.unparsable * (turn.error is not None) + self.tool_error * errors

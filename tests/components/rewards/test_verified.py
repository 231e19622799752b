"""The verdict as a reward; what is not known is not a zero."""

import pytest

from components import plugins
from components.errors import ConfigError
from components.protocols import Reward
from components.records import Feedback, Task, Trajectory
from components.rewards.verified import Verified

TASK = Task("k", "Do it.", "help_desk", {})


def ended(outcome: bool | None, stop_reason: str | None = "done", **criteria: float) -> Trajectory:
    feedback = tuple(
        Feedback("verifier", "criterion", score=score, name=name)
        for name, score in criteria.items()
    )
    return Trajectory("t", "a", (), outcome=outcome, stop_reason=stop_reason, feedback=feedback)


def test_solved_is_one_and_unsolved_is_zero() -> None:
    reward: Reward = Verified()
    group = [ended(True), ended(False, state=1.0), ended(False, "unparsable"), ended(True, None)]
    assert reward.score(TASK, group) == (1.0, 0.0, 0.0, 1.0)


def test_unknown_is_none() -> None:
    """An abstaining verifier, and episodes that broke outside the agent, whatever was noted on them."""
    group = [ended(None), ended(None, "error: model: gone"), ended(False, "error: episode: x")]
    assert Verified().score(TASK, group) == (None, None, None)
    assert Verified().score(TASK, []) == ()


def test_partial_pays_failures_for_named_criteria_that_are_met() -> None:
    """state 0.25 + reply 0.125 = 0.375; a criterion that is not met or not named pays nothing."""
    reward = Verified(partial={"state": 0.25, "reply": 0.125})
    group = [
        ended(False, state=1.0, reply=1.0, no_violation=1.0),
        ended(False, state=1.0, reply=0.0),
        ended(False, state=0.5),
        ended(True, state=1.0, reply=1.0),
        ended(False),
    ]
    assert reward.score(TASK, group) == (0.375, 0.25, 0.0, 1.0, 0.0)


def test_judges_and_users_do_not_meet_criteria() -> None:
    loud = Trajectory(
        "t", "a", (), outcome=False, feedback=(Feedback("judge", "criterion", 1.0, name="state"),)
    )
    assert Verified(partial={"state": 0.5}).score(TASK, [loud]) == (0.0,)


@pytest.mark.parametrize(
    "partial", [{"state": 1.0}, {"a": 0.5, "b": 0.5}, {"a": -0.1}, {"a": float("nan")}]
)
def test_partial_never_reaches_success(partial: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="below 1"):
        plugins.make("rewards", "verified", {"partial": partial})

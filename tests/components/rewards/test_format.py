"""Charges for unreadable actions and calls that could not be done."""

import pytest

from components import plugins
from components.errors import ConfigError
from components.protocols import Reward
from components.records import Message, Task, Trajectory, Turn
from components.rewards.format import Format

TASK = Task("k", "Do it.", "help_desk", {})


def turn(error: str | None = None, num_tool_errors: int = 0) -> Turn:
    facts = {"unparsable": error, "num_tool_errors": num_tool_errors}
    return Turn(0, (), Message("assistant", "x"), error=error, env_facts=facts)


def test_charges_add_up() -> None:
    """Clean: 0. One unreadable: 0.25. One unreadable and two failed calls: 0.25 + 2 * 0.125 = 0.5."""
    reward: Reward = Format(unparsable=0.25, tool_error=0.125, max_charge=0.75)
    group = [
        Trajectory("a", "x", (turn(),)),
        Trajectory("b", "x", (turn("cut off"), turn())),
        Trajectory("c", "x", (turn("empty"), turn(num_tool_errors=2))),
    ]
    assert reward.score(TASK, group) == (0.0, -0.25, -0.5)


def test_charge_is_bounded() -> None:
    turns = tuple(turn("empty") for _ in range(50))
    assert Format(unparsable=0.25, max_charge=0.75).score(TASK, [Trajectory("a", "x", turns)]) == (
        -0.75,
    )


def test_no_turns_cost_nothing_and_broken_episodes_are_not_scored() -> None:
    group = [
        Trajectory("a", "x", ()),
        Trajectory("b", "x", (turn("e"),), stop_reason="error: model: x"),
    ]
    assert Format().score(TASK, group) == (0.0, None)


def test_turns_of_other_worlds_need_no_facts() -> None:
    plain = Turn(0, (), Message("assistant", "x"))
    assert Format().score(TASK, [Trajectory("a", "x", (plain,))]) == (0.0,)


@pytest.mark.parametrize(
    "options", [{"unparsable": -1.0}, {"tool_error": -1.0}, {"max_charge": 1.0}]
)
def test_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        plugins.make("rewards", "format", options)

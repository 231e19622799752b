"""Small builders of trajectories for the mining tests."""

import json
from typing import Any

from components.records import Feedback, Message, ToolCall, Trajectory, Turn

SYSTEM = Message("system", "You serve customers of a shop.")


def asked(text: str = "Please cancel order W482.") -> tuple[Message, ...]:
    return (SYSTEM, Message("user", text))


def call(tool: str, arguments: dict[str, Any] | str, id: str = "c1") -> Message:
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message("assistant", None, (ToolCall(id, tool, raw),))


def say(text: str) -> Message:
    return Message("assistant", text)


def result(text: str, id: str | None = "c1") -> tuple[Message, ...]:
    return (Message("tool", text, tool_call_id=id),)


def episode(*pairs: Any, executor: Any = "policy", start: int = 0, **turn: Any) -> list[Turn]:
    """Turns of (observation, action) pairs."""
    return [
        Turn(start + place, observation, action, executor, **turn)
        for place, (observation, action) in enumerate(pairs)
    ]


def solved(*actions: Message, opening: tuple[Message, ...] | None = None) -> list[Any]:
    """(observation, action) pairs in which every call is answered `{"ok": true}`."""
    pairs: list[Any] = []
    observation = opening or asked()
    for action in actions:
        pairs.append((observation, action))
        observation = tuple(
            Message("tool", '{"ok": true}', tool_call_id=c.id) for c in action.tool_calls
        )
    return pairs


def failed(
    turns: list[Turn], id: str = "t1", outcome: bool | None = False, **rest: Any
) -> Trajectory:
    return Trajectory(id, "desk", tuple(turns), outcome=outcome, **rest)


def taken_over(agent: list[Any], person: list[Any], id: str = "t1", **rest: Any) -> Trajectory:
    """The agent's turns, and then the operator's, who starts again at turn 0."""
    turns = episode(*agent)
    turns += episode(*person, executor="human", start=len(turns))
    edit = Feedback("user", "edit", turn=0, actor="operator")
    return failed(turns, id, feedback=(edit,), **rest)

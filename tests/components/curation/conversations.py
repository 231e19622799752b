"""Small conversations for the curation tests, in the shapes that ingestion leaves."""

from typing import Any

from components.records import (
    FailureCase,
    Fault,
    Feedback,
    Lineage,
    Message,
    Review,
    ToolCall,
    Trajectory,
    Turn,
)
from components.serial import digest

LINEAGE = Lineage((), "tests", "1", "rule", digest(""))
OPENING = (Message("system", "Be kind."), Message("user", "Cancel order O1."))


def call(name: str, arguments: str = "{}", call_id: str = "c1") -> Message:
    return Message("assistant", None, (ToolCall(call_id, name, arguments),))


def result(text: str, call_id: str = "c1", marks: tuple[str, ...] = ()) -> Message:
    return Message("tool", text, tool_call_id=call_id, marks=marks)


def say(text: str) -> Message:
    return Message("assistant", text)


def turns(
    *steps: tuple[tuple[Message, ...], Message], executor: Any = "policy", at: int = 0
) -> Any:
    return tuple(
        Turn(at + place, seen, action, executor=executor)
        for place, (seen, action) in enumerate(steps)
    )


def success(trajectory_id: str = "ok", opening: tuple[Message, ...] = OPENING) -> Trajectory:
    """The policy looks up and answers: two turns, good."""
    own = turns(
        (opening, call("get_order", '{"id": "O1"}')), ((result("open"),), say("It is open."))
    )
    return Trajectory(trajectory_id, "desk", own, outcome=True)


def corrected(trajectory_id: str = "fixed", user: str = "Cancel order O1.") -> Trajectory:
    """The policy calls the wrong tool at turn 0; the operator does it over from there: places 2, 3, 4."""
    opening = (OPENING[0], Message("user", user))
    policy = turns(
        (opening, call("refund_order", '{"id": "O1"}')), ((result("error"),), say("Done."))
    )
    person = turns(
        (opening, call("get_order", '{"id": "O1"}', "h1")),
        ((result("open", "h1"),), call("cancel_order", '{"id": "O1"}', "h2")),
        ((result("cancelled", "h2"),), say("Order O1 is cancelled.")),
        executor="human",
        at=2,
    )
    edit = Feedback("user", "edit", turn=0, actor="operator")
    return Trajectory(trajectory_id, "desk", (*policy, *person), outcome=False, feedback=(edit,))


def corrected_midway(trajectory_id: str = "midway") -> Trajectory:
    """Right at turn 0, wrong at turn 1; the operator takes over at turn 1.

    As a reader may leave it, the person's first observation is a copy of the policy's, whose tool result is marked an orphan
    because it was read apart from its call.
    """
    policy = turns((OPENING, call("get_order")), ((result("open"),), say("I cannot cancel.")))
    person = turns(
        ((result("open", marks=("orphan tool result",)),), call("cancel_order", "{}", "h1")),
        ((result("cancelled", "h1"),), say("Cancelled.")),
        executor="human",
        at=2,
    )
    edit = Feedback("user", "edit", turn=1, actor="operator")
    return Trajectory(trajectory_id, "desk", (*policy, *person), outcome=False, feedback=(edit,))


def failed(trajectory_id: str = "lost") -> Trajectory:
    own = turns((OPENING, say("No.")))
    return Trajectory(trajectory_id, "desk", own, outcome=False)


def case_of(
    trajectory: Trajectory,
    signature: str = "wrong_tool|cancel_order|issued refund_order",
    fault: Fault = "model",
    mode_id: str | None = "m1",
    turn: int | None = 0,
    review: Review | None = None,
) -> FailureCase:
    return FailureCase(
        f"case-{trajectory.id}",
        trajectory.id,
        turn,
        fault,
        signature,
        "x",
        (),
        LINEAGE,
        mode_id,
        review,
    )

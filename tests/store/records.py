"""Small records for the store's tests."""

from datetime import UTC, datetime

from components.records import (
    Evidence,
    FailureCase,
    FailureMode,
    Feedback,
    Lineage,
    MemoryEntry,
    Message,
    Segment,
    ToolCall,
    Trajectory,
    Turn,
    Usage,
)

LINEAGE = Lineage(("t-1",), "mining/rules", "v1", "rule", "c0ffee", 7)
TOOL = {
    "type": "function",
    "function": {
        "name": "refund",
        "parameters": {"type": "object", "properties": {"order": {}, "id": {}}},
    },
}


def sampled_turn(index: int, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...]) -> Turn:
    return Turn(
        index=index,
        observation=(Message("user", "refund order 7"),),
        action=Message("assistant", None, (ToolCall("c1", "refund", '{"order": 7 }'),)),
        segments=(Segment("tool_call", 0, len(completion_ids)),),
        usage=Usage(len(prompt_ids), None, len(completion_ids)),
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=tuple(-0.1 * (place + 1) / 3 for place in range(len(completion_ids))),
        policy_version="p1",
    )


def trajectory(key: str = "t-1", turns: tuple[Turn, ...] = (), agent: str = "desk") -> Trajectory:
    return Trajectory(
        id=key,
        agent=agent,
        turns=turns,
        task_id="task-1",
        conversation_id=f"conversation of {key}",
        feedback=(Feedback("user", "rating", 0.25, occurred_at=datetime(2026, 1, 30, tzinfo=UTC)),),
        outcome=False,
        stop_reason="done",
        split="train",
        started_at=datetime(2026, 1, 30, 9, 30, tzinfo=UTC),
        tools=(TOOL,),
        metadata={"zebra": 1, "ant": [1.5, None]},
    )


def case(key: str = "c-1", trajectory_id: str = "t-1", mode_id: str | None = None) -> FailureCase:
    return FailureCase(
        id=key,
        trajectory_id=trajectory_id,
        turn=1,
        fault="model",
        signature="wrong_tool|refund|issued cancel",
        summary="cancelled instead of refunded",
        evidence=(Evidence(1, "cancel_order"),),
        lineage=LINEAGE,
        mode_id=mode_id,
    )


def mode(key: str = "m-1", name: str = "wrong tool for refunds", **counts: int) -> FailureMode:
    return FailureMode(
        id=key,
        name=name,
        description="refunds are answered by cancelling",
        signature="wrong_tool|refund|issued cancel",
        status="new",
        counts={night.replace("_", "-").removeprefix("n"): num for night, num in counts.items()},
        lineage=LINEAGE,
        embedding=unit(3),
    )


def entry(key: str, cue: str, content: str, version: int = 1) -> MemoryEntry:
    return MemoryEntry(
        id=key,
        version=version,
        kind="lesson",
        cue=cue,
        content=content,
        provenance=("t-1",),
        scope="desk",
        lineage=LINEAGE,
    )


def unit(axis: int) -> tuple[float, ...]:
    """A unit vector along one of the 384 axes."""
    return tuple(1.0 if place == axis else 0.0 for place in range(384))

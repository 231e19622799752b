"""tau-bench and tau2-bench results: simulated customers, tools, and a reward from the final database.

tau-bench is one JSON array; tool ids are used again inside a trajectory and failed tools answer with text `Error...`:

    [{"task_id": 3, "trial": 0, "reward": 1.0, "info": {"task": {...}}, "traj": [{"role": "user", "content": "..."}]}]

tau2 is one JSON object, arguments are objects, and a tool may be the customer's (`requestor`):

    {"info": {"agent_info": {"llm": "m"}}, "tasks": [...], "simulations": [{"id": "s", "task_id": "3", "trial": 0,
      "messages": [...], "reward_info": {"reward": 1.0}, "termination_reason": "user_stop"}]}

One record per trajectory. The reward becomes feedback of the environment and the outcome is True exactly when it is 1;
without a number there is neither. Reference actions stay in the raw record: no trajectory carries a solution.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import orjson

from components.errors import RecordError
from components.ingestion._conversation import (
    Answer,
    build_turns,
    distinct,
    mark,
    read_time,
    source_of,
    trajectory_id,
)
from components.ingestion._framing import MAX_BYTES, Frame, frames
from components.llm import read_message, read_usage
from components.plugins import plugin
from components.protocols import Detection, RawRecord, Rejected
from components.records import Feedback, Message, Trajectory
from components.serial import digest

STOPS = {"user_stop": "done", "agent_stop": "done", "max_steps": "max_turns"}


@plugin
class TauBench:
    max_bytes: int = MAX_BYTES
    """Longest tau-bench record, and longest tau2 file, in bytes."""

    def detect(self, head: bytes, name: str) -> Detection:
        if re.search(rb'^[\s\[]*\{.*"task_id"\s*:.*"traj"\s*:\s*\[', head, re.DOTALL):
            return Detection(0.95, "records with task_id and traj")
        if b'"simulations"' in head or re.search(
            rb'"num_trials"\s*:.*"user_info"', head, re.DOTALL
        ):
            return Detection(0.9, "a tau2 result file")
        return Detection(0.0, "no task_id with traj, no simulations")

    def read(self, stream: BinaryIO) -> Iterator[RawRecord | Rejected]:
        for frame in frames(stream, self.max_bytes):
            if isinstance(frame, Rejected):
                yield frame
            elif isinstance(frame.payload.get("simulations"), list):
                yield from _simulations(frame)
            else:
                yield _record(frame, frame.payload, frame.raw)

    def assemble(self, records: Sequence[RawRecord], agent: str) -> Trajectory:
        known = distinct(records)
        record = known[-1]
        messages, answers = _messages(record.payload)
        turns, tail = build_turns(messages, answers)
        reward = _reward(record.payload)
        told = () if reward is None else (Feedback("environment", "outcome", score=reward),)
        reason = _text(record.payload.get("termination_reason"))
        return Trajectory(
            id=trajectory_id(known, agent),
            agent=agent,
            turns=turns,
            tail=tail,
            task_id=str(record.payload["task_id"]),
            conversation_id=record.conversation_id,
            feedback=told,
            outcome=None if reward is None else reward == 1.0,
            outcome_source=None if reward is None else "environment",
            stop_reason="done" if reason is None else STOPS.get(reason, reason),
            policy=_text(record.payload.get("agent_model")),
            source=source_of(known),
            started_at=read_time(record.payload.get("start_time")),
            marks=("altered",) if record.marks else (),
            metadata={"trial": record.payload.get("trial")},
        )


def _simulations(frame: Frame) -> Iterator[RawRecord | Rejected]:
    info = frame.payload.get("info")
    agent = info.get("agent_info") if isinstance(info, dict) else None
    model = agent.get("llm") if isinstance(agent, dict) else None
    for simulation in frame.payload["simulations"]:
        payload = {**simulation, "agent_model": model} if isinstance(simulation, dict) else {}
        yield _record(frame, payload, orjson.dumps(simulation, option=orjson.OPT_SORT_KEYS))


def _record(frame: Frame, payload: dict[str, Any], raw: bytes) -> RawRecord | Rejected:
    try:
        _messages(payload)
        _reward(payload)
        conversation = f"{payload['task_id']}-{payload.get('trial', 0)}-{digest(raw)[:16]}"
    except (RecordError, KeyError, TypeError, AttributeError) as error:
        text = raw[:300].decode("utf-8", "replace")
        reason = f"not a tau-bench trajectory: {error!r}"
        return Rejected(reason, frame.start, frame.end, frame.line, text)
    return RawRecord(
        id=digest(f"tau_bench\n{conversation}\n".encode() + raw),
        format="tau_bench",
        conversation_id=conversation,
        payload=payload,
        start=frame.start,
        end=frame.end,
        line=frame.line,
        marks=frame.marks,
    )


def _messages(payload: Mapping[str, Any]) -> tuple[list[Message], dict[int, Answer]]:
    raw = payload["traj"] if "traj" in payload else payload["messages"]
    if not isinstance(raw, list):
        raise RecordError(f"trajectory is {type(raw).__name__}, expected a list of messages")
    messages: list[Message] = []
    answers: dict[int, Answer] = {}
    for place, item in enumerate(raw):
        message = read_message(item)
        if message.role == "tool":
            if message.tool_call_id is None and "id" in item:
                message = read_message({**item, "tool_call_id": item["id"]})
            if item.get("error") or message.text.startswith("Error"):
                message = mark(message, "tool error")
        elif message.role == "assistant" and item.get("usage"):
            answers[place] = Answer(
                message,
                usage=read_usage(item["usage"]),
                latency_s=item.get("generation_time_seconds"),
            )
        messages.append(message)
    return messages, answers


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _reward(payload: Mapping[str, Any]) -> float | None:
    info = payload.get("reward_info")
    reward = payload.get("reward", info.get("reward") if isinstance(info, dict) else None)
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise RecordError(f"reward is {reward!r}, expected a number or nothing")
    return float(reward)

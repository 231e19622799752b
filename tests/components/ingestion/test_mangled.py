"""Logs are untrusted: whatever stands in a field, a reader yields a record that assembles, or a rejection."""

import copy
import json
from random import Random
from typing import Any

import pytest

from components.plugins import make
from components.protocols import RawRecord, Reader
from components.records import Trajectory
from components.serial import dump, load

from .logs import jsonl, read
from .test_openai_chat import FIRST, LOOKUP, SECOND, feedback, said, tool
from .test_otlp_json import ASK, CALL, REPLY, RESULT, attribute, chat, export, span
from .test_tau_bench import episode

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    "\x00",
    [],
    [1],
    ["x"],
    {},
    {"x": 1},
    {"error": 5},
]
EVENT = {
    "name": "gen_ai.user.message",
    "attributes": [attribute("content", "hi"), attribute("id", "w")],
}
INDEXED = {
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "x",
    "gen_ai.completion.0.content": "y",
}
ABOUT = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.call.id": "w",
    "gen_ai.tool.call.result": "r",
}
SAMPLES: dict[str, list[Any]] = {
    "openai_chat": [
        FIRST,
        SECOND,
        feedback(kind="edit", turn=0, messages=[LOOKUP, tool("k", "x"), said("y")]),
        feedback(kind="outcome", score=1.0),
        {
            "id": "1",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, said("y")],
        },
        {
            "choices": [
                {"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "stop"}
            ]
        },
    ],
    "otlp_json": [
        export(
            chat(2, [ASK, CALL, RESULT], REPLY),
            span(3, 2, attributes=ABOUT, status={"code": 2}),
            span(1),
        ),
        export(span(4, events=[EVENT], name="chat"), span(5, name="chat", attributes=INDEXED)),
    ],
    "tau_bench": [
        episode(),
        {
            "info": {"agent_info": {"llm": "m"}},
            "simulations": [{"task_id": 1, "messages": [said("x")], "reward_info": {"reward": 1}}],
        },
    ],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value inside."""
    keys = (
        value.keys()
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    return [path, *(deeper for key in keys for deeper in places(value[key], (*path, key)))]


def mangled(value: Any, rng: Random) -> Any:
    """A copy with one value replaced by junk, or one key removed."""
    changed = copy.deepcopy(value)
    paths = [path for path in places(value) if path]
    if not paths:
        return value
    path = rng.choice(paths)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if isinstance(inner, dict) and rng.random() < 0.2:
        del inner[path[-1]]
    else:
        inner[path[-1]] = rng.choice(JUNK)
    return changed


@pytest.mark.parametrize("name", SAMPLES)
def test_mangled_logs_never_raise(name: str) -> None:
    """1,500 logs with one or two wrong values each; what is accepted assembles and survives storage."""
    reader: Reader = make("ingestion", name)
    rng = Random(7)
    num_accepted = 0
    for _ in range(1_500):
        lines = [mangled(line, rng) if rng.random() < 0.6 else line for line in SAMPLES[name]]
        if rng.random() < 0.3:
            lines = [mangled(line, rng) for line in lines]
        data = jsonl_of(lines)
        groups: dict[str, list[RawRecord]] = {}
        for item in read(reader, data):
            if isinstance(item, RawRecord):
                groups.setdefault(item.conversation_id, []).append(item)
        for records in groups.values():
            trajectory = reader.assemble(records, "desk")
            assert load(Trajectory, dump(trajectory)) == trajectory
            num_accepted += 1
    assert num_accepted > 1_000


def jsonl_of(lines: list[Any]) -> bytes:

    return b"".join(json.dumps(line).encode() + b"\n" for line in lines) or jsonl()

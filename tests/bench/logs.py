"""A day's log of the recording proxy in any size: help-desk conversations, repeated under ids of their own.

Half of the conversations are solved by the agent; in the other half it answers in prose and the operator's correction
follows as feedback. Token ids and log-probabilities stand where the engine would have given them: about one token in
four characters, each prompt beginning with the one before and its completion, as in real logs.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import orjson

from components.capture._lines import Call, exchange_line, line_head
from components.environments.help_desk import HelpDesk
from components.llm import write_message
from components.records import Message, Task

AGENT = "help-desk"
BASE = 64
"""Different conversations; the rest repeats them."""
PLACEHOLDER = "conversation-to-be-named"
CHARACTERS_PER_TOKEN = 4
VOCABULARY = 49_152
PROSE = Message("assistant", "Thank you for reaching out! I understand that this is frustrating.")
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def write_log(path: Path, num_bytes: int, seed: int = 7) -> int:
    """Write whole conversations until the file has at least this many bytes; how many conversations."""
    world = HelpDesk()
    tasks = [task for task, _ in world.tasks(BASE, "train", Random(seed))]
    templates = [
        _lines_of(world, task, place % 2 == 1, Random(place)) for place, task in enumerate(tasks)
    ]
    count = 0
    with path.open("wb") as file:
        while file.tell() < num_bytes:
            name = b"day-%d-desk-%08x" % (seed, count)
            for line in templates[count % BASE]:
                file.write(line.replace(PLACEHOLDER.encode(), name))
            count += 1
    return count


def _lines_of(world: HelpDesk, task: Task, fails: bool, rng: Random) -> list[bytes]:
    opening = world.open(task).opening
    solution = world.operator_solution(task)
    spoken = [*opening, PROSE] if fails else [*opening, *solution]
    lines = list(_exchanges(world, spoken, rng))
    outcome = {"source": "user", "kind": "outcome", "score": float(not fails), "actor": "customer"}
    lines.append(_feedback(outcome))
    if fails:
        edit = {"source": "user", "kind": "edit", "turn": 0, "before": PROSE.text}
        messages = [write_message(message) for message in solution]
        lines.append(_feedback({**edit, "actor": "operator", "messages": messages}))
    return [orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines]


def _exchanges(world: HelpDesk, spoken: Sequence[Message], rng: Random) -> Iterator[dict[str, Any]]:
    """One line per answer of the agent, each request with the whole history."""
    tools = world.tools
    prompt_ids = _ids(len(orjson.dumps(tools)), rng)
    written = [write_message(message) for message in spoken]
    for place, message in enumerate(spoken):
        completion_ids = _ids(len(orjson.dumps(written[place])), rng)
        if message.role != "assistant":
            prompt_ids += completion_ids
            continue
        request = {
            "model": "champion",
            "messages": written[:place],
            "max_tokens": 40,
            "temperature": 0.7,
            "tools": tools,
        }
        at = NOON + timedelta(seconds=place)
        call = Call(AGENT, PLACEHOLDER, at, 0.0, request, b"", frozenset({"logprobs"}), None)
        answer = _answer(written[place], list(prompt_ids), completion_ids, rng)
        yield exchange_line(call, 200, 0.41, answer, None)
        prompt_ids += completion_ids


def _answer(
    message: dict[str, Any], prompt_ids: list[int], completion_ids: list[int], rng: Random
) -> dict[str, Any]:
    content = [{"token": "", "logprob": -rng.random()} for _ in completion_ids]
    return {
        "id": f"chatcmpl-{rng.getrandbits(64):016x}",
        "object": "chat.completion",
        "created": int(NOON.timestamp()),
        "model": "champion",
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
                "logprobs": {"content": content},
                "token_ids": completion_ids,
            }
        ],
        "usage": {
            "prompt_tokens": len(prompt_ids),
            "completion_tokens": len(completion_ids),
            "total_tokens": len(prompt_ids) + len(completion_ids),
        },
        "prompt_token_ids": prompt_ids,
        "policy_version": "base",
    }


def _ids(num_characters: int, rng: Random) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(-(-num_characters // CHARACTERS_PER_TOKEN))]


def _feedback(feedback: dict[str, Any]) -> dict[str, Any]:
    return {**line_head("feedback", AGENT, PLACEHOLDER, NOON), "feedback": feedback}

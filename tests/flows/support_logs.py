"""A small log of a support agent in tau-bench form, for projects without an environment."""

from pathlib import Path
from typing import Any

import orjson

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty")


def episode(number: int, solved: bool) -> dict[str, Any]:
    """A customer asks for an item by name and number; a solved conversation calls the tool with both."""
    item = f"{WORDS[number % len(WORDS)]}-{number}"
    call = {"id": "c1", "function": {"name": "find", "arguments": f'{{"item": "{item}"}}'}}
    said = "It is there." if solved else "I cannot help."
    done: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "find", "content": f"{item} in stock"},
    ]
    return {
        "task_id": number,
        "trial": 0,
        "reward": 1.0 if solved else 0.0,
        "info": {},
        "traj": [
            {"role": "system", "content": "Look items up."},
            {"role": "user", "content": f"Do you have {item}, and where did order {number} go?"},
            *(done if solved else []),
            {"role": "assistant", "content": said},
            {"role": "user", "content": "###STOP###"},
        ],
    }


def write_log(path: Path, num: int) -> Path:
    """`num` conversations, every third one a failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps([episode(n, solved=n % 3 != 0) for n in range(num)]))
    return path

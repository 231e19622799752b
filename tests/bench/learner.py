"""Learner: one optimizer step of ours against TRL's, and our update against a bare loop over the same tokens."""

import json
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from components.learner.policy import materialise
from tests.bench import child, trl_env, workload
from tests.bench.measure import Figure, Part, faster, share
from tests.bench.workload import Size

SPEED_AIM, MEMORY_AIM, BARE_AIM = 1.5, 0.6, 0.75
TRL_STEP = Path(__file__).with_name("trl_step.py")
MODELS = child.ROOT / ".nightshift" / "models"

Answers = dict[str, list[dict[str, Any]]]
"""Side -> what each of its processes answered."""


def model_folder(size: Size) -> Path:
    """The model of a size as a folder, de-quantised on first use."""
    return materialise(size.model, MODELS)


def measure(size: Size, with_trl: bool = True) -> Part:
    """Sides take turns, `rounds` times; each process makes `steps` counted steps."""
    folder = model_folder(size)
    made = workload.make(size, folder, AutoTokenizer.from_pretrained(folder))
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as scratch:
        path = workload.save(made, Path(scratch) / "workload.json")
        answers = run_sides(sides(path, with_trl), size)
    check_same_tokens(answers)
    return summarise(size, answers)


def sides(path: Path, with_trl: bool) -> dict[str, list[str]]:
    """Side -> command that measures it."""
    made = {
        "ours": _in_child("tests.bench.ours:whole_step", path),
        "ours update": _in_child("tests.bench.ours:update", path),
        "bare tree": _in_child("tests.bench.bare:run", path, variant="tree"),
        "bare padded": _in_child("tests.bench.bare:run", path, variant="padded"),
    }
    if with_trl:
        trl = [str(trl_env.python_of()), str(TRL_STEP), str(path)]
        made |= {"TRL": trl, "TRL checkpointing": [*trl, "checkpointing"]}
    return made


def _in_child(function: str, path: Path, **more: str) -> list[str]:
    return child.command(function, {"workload": str(path), **more})


def run_sides(commands: dict[str, list[str]], size: Size) -> Answers:
    answers: Answers = {name: [] for name in commands}
    for _ in range(size.rounds):
        for name, command in commands.items():
            answers[name].append(child.answer_of(command, size.threads))
    return answers


def check_same_tokens(answers: Answers) -> None:
    """Compared sides must have processed the same tokens.

    Raises:
        SideFailed: they did not.
    """
    for key, names in (
        ("tokens", ("ours", "TRL", "TRL checkpointing")),
        ("model_tokens", ("ours update", "bare tree")),
    ):
        counts = {name: answers[name][0][key] for name in names if name in answers}
        if len(set(counts.values())) > 1:
            raise child.SideFailed(f"sides differ in {key}: {counts}; their times say nothing")


def summarise(size: Size, answers: Answers) -> Part:
    ours = {
        key: _figure(answers, "ours", key, f"our {what}")
        for key, what in (("whole", "whole step"), ("sampling", "sampling"), ("update", "update"))
    }
    alone = _figure(answers, "ours update", "seconds", "our update on given tokens")
    memory = _memory(answers, "ours", "our peak memory, whole step")
    limits = {
        name: _figure(answers, f"bare {name}", "seconds", f"bare loop, {what}", "limit")
        for name, what in (("tree", "prompt once per group"), ("padded", "padded rows"))
    }
    figures = [*ours.values(), memory, alone, *limits.values()]
    figures += [
        _memory(answers, "ours update", "our peak memory, update alone"),
        _memory(answers, "bare tree", "bare peak memory, prompt once per group", "limit"),
    ]
    ratios = [
        faster(alone, limits["tree"], BARE_AIM),
        faster(alone, limits["padded"]),
        share(figures[-2], figures[-1], "of the memory"),
    ]
    for side in ("TRL", "TRL checkpointing"):
        if side not in answers:
            continue
        has_aim = side == "TRL"
        peer = {
            key: _figure(answers, side, key, f"{side}, {what}", "peer")
            for key, what in (("whole", "whole step"), ("sampling", "sampling"), ("update", "rest"))
        }
        peak = _memory(answers, side, f"{side}, peak memory", "peer")
        figures += [*peer.values(), peak]
        ratios += [
            faster(ours["whole"], peer["whole"], SPEED_AIM if has_aim else None),
            faster(ours["sampling"], peer["sampling"]),
            faster(ours["update"], peer["update"], SPEED_AIM if has_aim else None),
            share(memory, peak, "of the memory", MEMORY_AIM if has_aim else None),
        ]
    return Part("learner", _setup(size), tuple(figures), tuple(ratios), _facts(answers))


def _figure(answers: Answers, side: str, key: str, name: str, role: Any = "ours") -> Figure:
    values = tuple(value for answer in answers[side] for value in answer[key])
    return Figure(name, "s", values, role)


def _memory(answers: Answers, side: str, name: str, role: Any = "ours") -> Figure:
    return Figure(name, "MB", tuple(answer["peak_mb"] for answer in answers[side]), role)


def _facts(answers: Answers) -> dict[str, Any]:
    """Tokens of a step by side, and how far our sampler and trainer disagree."""
    return {
        "tokens through the model": json.dumps(
            {
                side: all_[-1]["model_tokens"]
                for side, all_ in answers.items()
                if "model_tokens" in all_[-1]
            }
        ),
        "tokens of a step with repeated prompts": json.dumps(
            {side: all_[-1]["tokens"] for side, all_ in answers.items() if "tokens" in all_[-1]}
        ),
        "our mean |sampler - trainer| log-probability": answers["ours"][-1][
            "logprob_difference_mean"
        ],
    }


def _setup(size: Size) -> str:
    return (
        f"{size.prompts} prompts of {size.prompt_tokens} tokens x {size.completions} completions x "
        f"{size.completion_tokens} tokens, {size.model}, LoRA rank {size.rank} on all linear layers, {size.dtype}, "
        f"{size.threads} threads; {size.rounds} processes a side x {size.steps} steps"
    )

"""Checkpoints: complete or not there.

    checkpoint-000200/
        adapter_model.safetensors, adapter_config.json     what serving reads (or model.safetensors, trained whole)
        optimizer.safetensors                              mean and squared gradients, per parameter; random state
        state.json                                         step count and what the optimizer was set to
        COMPLETE                                           {"files": {name: [size, sha256]}}, written last

A checkpoint is written under a temporary name, flushed, and renamed. Without a mark that matches its files it is never
read. Only safetensors and JSON: nothing is executed on loading. Continuing from a checkpoint gives the same weights, bit
for bit, as never having stopped.
"""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from components.errors import ConfigError, TrainingError
from components.learner.learner import Learner

MARK, OPTIMIZER, STATE = "COMPLETE", "optimizer.safetensors", "state.json"
PREFIX, TEMPORARY = "checkpoint-", "tmp-"
RANDOM_STATE = "random_state"


class Skipped(NamedTuple):
    path: Path
    reason: str


class Latest(NamedTuple):
    path: Path | None
    """The newest complete checkpoint, or None."""
    skipped: tuple[Skipped, ...]
    """Newer ones that cannot be used, and why."""


def save(folder: Path, learner: Learner) -> Path:
    """Write `folder/checkpoint-<step>`; an equal one that stands there already is left alone.

    Raises:
        TrainingError: the disk refused; no partial checkpoint is left under a final name.
    """
    target = folder / f"{PREFIX}{learner.step:06d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder))
        try:
            _write(unfinished, learner)
            _publish(unfinished, target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"cannot write checkpoint {str(target)!r}: {error}. Earlier checkpoints stand; free space and run again"
        ) from error
    return target


def _write(folder: Path, learner: Learner) -> None:
    learner.policy.save_adapter(folder)
    tensors = {RANDOM_STATE: torch.get_rng_state()}
    for name, parameter in learner.parameters.items():
        for key, value in learner.optimizer.state[parameter].items():
            tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
    save_file(tensors, folder / OPTIMIZER)
    state = {"step": learner.step, "settings": asdict(learner.settings)}
    (folder / STATE).write_text(json.dumps(state, indent=1, sort_keys=True))
    folder.chmod(0o755)
    files = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    (folder / MARK).write_text(json.dumps({"files": files}, indent=1))
    for path in folder.iterdir():
        path.chmod(0o644)
        _flush(path)
    _flush(folder)


def _publish(unfinished: Path, target: Path) -> None:
    if target.exists():
        if (
            problem(target) is None
            and (target / MARK).read_bytes() == (unfinished / MARK).read_bytes()
        ):
            return
        target.rename(unfinished.with_name(unfinished.name + "-replaced"))
    unfinished.rename(target)
    _flush(target.parent)
    shutil.rmtree(unfinished.with_name(unfinished.name + "-replaced"), ignore_errors=True)


def _fingerprint(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def problem(checkpoint: Path) -> str | None:
    """Why the folder is not a complete checkpoint, or None when it is."""
    try:
        files = json.loads((checkpoint / MARK).read_text())["files"]
    except FileNotFoundError:
        return f"it has no file {MARK}: writing it was interrupted"
    except (ValueError, KeyError, TypeError) as error:
        return f"its file {MARK} is unreadable: {error!r}"
    for name, (size, sha256) in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, expected {size}"
        if _fingerprint(path)[1] != sha256:
            return f"{name} has another content than when it was written"
    return None


def latest(folder: Path) -> Latest:
    """The newest complete checkpoint; left-over temporaries are removed. Only the writer of `folder` may call this."""
    skipped: list[Skipped] = []
    for path in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
    numbered = [
        path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdecimal()
    ]
    for path in sorted(
        numbered, key=lambda each: int(each.name.removeprefix(PREFIX)), reverse=True
    ):
        reason = problem(path)
        if reason is None:
            return Latest(path, tuple(skipped))
        skipped.append(Skipped(path, f"{path.name} is skipped: {reason}"))
    return Latest(None, tuple(skipped))


def resume(checkpoint: Path, learner: Learner) -> None:
    """Bring a learner with the same settings to where the checkpoint was taken.

    Raises:
        TrainingError: the checkpoint is not complete.
        ConfigError: it was written under other settings.
    """
    reason = problem(checkpoint)
    if reason is not None:
        raise TrainingError(f"cannot continue from {str(checkpoint)!r}: {reason}")
    state = json.loads((checkpoint / STATE).read_text())
    own = asdict(learner.settings)
    changed = [
        key for key in own if state["settings"].get(key) != own[key] and key != "num_threads"
    ]
    if changed:
        raise ConfigError(
            f"{str(checkpoint)!r} was written with other settings: {', '.join(changed)}; "
            "continue with the same ones, or start from its adapter"
        )
    learner.policy.load_adapter(checkpoint)
    tensors = load_file(checkpoint / OPTIMIZER)
    torch.set_rng_state(tensors.pop(RANDOM_STATE))
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        parameter = learner.parameters[name]
        place = tensor if kind == "step" else tensor.to(parameter.device)
        learner.optimizer.state[parameter][kind] = place
    learner.step = state["step"]

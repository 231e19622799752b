"""Complete or not there, and continuing equals never having stopped."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from components.errors import ConfigError, TrainingError
from components.learner import checkpoint
from components.learner.learner import Learner, LearnerSettings
from components.learner.policy import ModelSettings, load_policy
from tests.components.learner.conftest import TINY
from tests.components.learner.samples import demonstration, rollouts

SETTINGS = LearnerSettings(learning_rate=1e-2, warmup_steps=5, num_threads=1)


def batch(step):
    return [*rollouts(4, seed=step), demonstration(range(step, step + 20), [0] * 5 + [1] * 15)]


def trained(learner, steps):
    for step in steps:
        learner.update(batch(step))
    return learner


@pytest.mark.parametrize("settings", [TINY, ModelSettings(lora_rank=0, dtype="float32")])
def test_resume_is_bit_identical(tiny_dir, tmp_path, settings):
    """6 steps straight, against 3, a checkpoint read by a fresh learner, and 3 more."""
    straight = trained(Learner(load_policy(tiny_dir, None, settings, seed=1), SETTINGS), range(6))
    half = trained(Learner(load_policy(tiny_dir, None, settings, seed=1), SETTINGS), range(3))
    path = checkpoint.save(tmp_path, half)
    fresh = Learner(load_policy(tiny_dir, None, settings, seed=77), SETTINGS)
    checkpoint.resume(path, fresh)
    assert fresh.step == 3
    trained(fresh, range(3, 6))
    for name, parameter in straight.parameters.items():
        assert torch.equal(parameter, fresh.parameters[name]), name


def test_random_state_comes_back(policy, tmp_path):
    learner = trained(Learner(policy, SETTINGS), range(1))
    path = checkpoint.save(tmp_path, learner)
    wanted = torch.rand(3)
    checkpoint.resume(path, learner)
    assert torch.equal(torch.rand(3), wanted)


@pytest.fixture
def two(policy, tmp_path):
    """Checkpoints of step 1 and 2 in a folder."""
    learner = trained(Learner(policy, SETTINGS), range(1))
    checkpoint.save(tmp_path, learner)
    trained(learner, range(1, 2))
    checkpoint.save(tmp_path, learner)
    return tmp_path


def test_latest_is_the_newest(two):
    assert checkpoint.latest(two) == checkpoint.Latest(two / "checkpoint-000002", ())


def test_half_written_checkpoint_is_skipped_with_a_message(two):
    """S23: step 3 was cut while saving, a temporary folder is left over."""
    cut = two / "checkpoint-000003"
    shutil.copytree(two / "checkpoint-000002", cut)
    (cut / "COMPLETE").unlink()
    (two / "tmp-checkpoint-300").mkdir()
    found = checkpoint.latest(two)
    assert found.path == two / "checkpoint-000002"
    assert [each.path for each in found.skipped] == [cut]
    assert "checkpoint-000003 is skipped: it has no file COMPLETE" in found.skipped[0].reason
    assert sorted(each.name for each in two.iterdir()) == [
        "checkpoint-000001",
        "checkpoint-000002",
        "checkpoint-000003",
    ]


def test_numbers_are_compared_as_numbers(two):
    shutil.copytree(two / "checkpoint-000002", two / "checkpoint-1000000")
    path = checkpoint.latest(two).path
    assert path is not None
    assert path.name == "checkpoint-1000000"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: truncate(path / "adapter_model.safetensors"), "bytes, expected"),
        (lambda path: flip(path / "optimizer.safetensors"), "another content"),
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
        (lambda path: (path / "COMPLETE").write_text("{"), "unreadable"),
    ],
)
def test_damage_is_named_and_never_loaded(two, policy, damage, reason):
    path = two / "checkpoint-000002"
    damage(path)
    found = checkpoint.latest(two)
    assert found.path == two / "checkpoint-000001"
    assert reason in found.skipped[0].reason
    with pytest.raises(TrainingError, match=reason):
        checkpoint.resume(path, Learner(policy, SETTINGS))


def test_mark_lists_every_file_with_size_and_digest(two):
    path = two / "checkpoint-000002"
    files = json.loads((path / "COMPLETE").read_text())["files"]
    assert set(files) == {each.name for each in path.iterdir()} - {"COMPLETE"}
    assert all(size == (path / name).stat().st_size for name, (size, _) in files.items())


def test_saving_twice_keeps_one(policy, tmp_path):
    learner = trained(Learner(policy, SETTINGS), range(1))
    first = checkpoint.save(tmp_path, learner)
    written = (first / "COMPLETE").stat().st_mtime_ns
    assert checkpoint.save(tmp_path, learner) == first
    assert (first / "COMPLETE").stat().st_mtime_ns == written
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint-000001"]


def test_damaged_one_of_the_same_step_is_replaced(policy, tmp_path):
    learner = trained(Learner(policy, SETTINGS), range(1))
    path = checkpoint.save(tmp_path, learner)
    truncate(path / "state.json")
    checkpoint.save(tmp_path, learner)
    assert checkpoint.problem(path) is None
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint-000001"]


def test_other_settings_are_refused(two, policy):
    learner = Learner(policy, replace(SETTINGS, learning_rate=1.0))
    with pytest.raises(ConfigError, match="other settings: learning_rate"):
        checkpoint.resume(two / "checkpoint-000002", learner)


def test_disk_that_refuses_leaves_nothing_behind(policy, tmp_path):
    """The folder cannot be made because a file has its name."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(TrainingError, match="cannot write checkpoint"):
        checkpoint.save(tmp_path / "taken", Learner(policy, SETTINGS))
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


def test_empty_folder_has_no_checkpoint(tmp_path):
    assert checkpoint.latest(tmp_path) == checkpoint.Latest(None, ())

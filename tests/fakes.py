"""Small stand-ins shared by all tests: a byte tokenizer and a two-layer Llama.

Both use the same ids: 0 to 255 are bytes, then the three ChatML tokens. `torch` and `transformers` are imported only by
the functions that need them, so tests of pure parts stay light.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIAL = {"<|im_start|>": 256, "<|im_end|>": 257, "<|endoftext|>": 258}
VOCABULARY = 264
"""Vocabulary of the tiny model: bytes, special tokens, and a few ids that stand for nothing."""


class ByteTokenizer:
    """One token per UTF-8 byte; the interface that rendering needs of a Hugging Face tokenizer."""

    def encode(
        self, text: str, *, add_special_tokens: bool = False, split_special_tokens: bool = False
    ) -> list[int]:
        assert not add_special_tokens, "the byte tokenizer adds nothing"
        if split_special_tokens:
            return list(text.encode())
        for token, token_id in SPECIAL.items():
            before, found, after = text.partition(token)
            if found:
                return [*self.encode(before), token_id, *self.encode(after)]
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        names = {token_id: token.encode() for token, token_id in SPECIAL.items()}
        parts = [
            b"" if skip_special_tokens and each in names else names.get(each) or bytes([each])
            for each in token_ids
        ]
        return b"".join(parts).decode(errors="replace")

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        return SPECIAL.get(tokens)


def tiny_llama(seed: int = 0, vocabulary: int = VOCABULARY) -> Any:
    """A two-layer Llama with grouped heads, random weights, float32, evaluation mode."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=257,
        tie_word_embeddings=True,
        # Wider than the library's 0.02, so that logits differ enough for tests to see.
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def save_tiny_policy(folder: Path, seed: int = 0) -> Path:
    """A model folder as `load_policy` reads it: the tiny Llama and a real tokenizer with the same ids."""
    tiny_llama(seed).save_pretrained(folder)
    _library_tokenizer().save_pretrained(folder)
    return folder


def _library_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # The byte-level alphabet of GPT-2: printable Latin-1 stands for itself, the rest moves up by 256.
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = [byte for byte in range(256) if byte not in printable]
    letters = {
        chr(byte if byte in printable else 256 + moved.index(byte)): byte for byte in range(256)
    }
    core = Tokenizer(models.BPE(vocab=letters, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )

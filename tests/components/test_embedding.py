from collections.abc import Sequence

import numpy as np
import pytest

from components.embedding import CachedEmbed, HashingEmbed, load_embedder, mask, mask_values


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Refund $12.50 on W482 to ann@x.org", "Refund <AMOUNT> on <ID> to <EMAIL>"),
        (
            "Order #W482-A from 2026-01-02 at 12:30, qty 3",
            "Order <ID> from <NUMBER> at <NUMBER>, qty <NUMBER>",
        ),
        ("I'm Ann Lee and I want cancel_order", "I'm <NAME> and I want cancel_order"),
        ("ship it to 9 Elm Road", "ship it to <NUMBER> <NAME>"),
        ("see https://a.b/c?d=1 now", "see <URL> now"),
        ("orders W1, W2, W3", "orders <ID>"),
        ("  nothing   particular ", "nothing particular"),
        ("", ""),
    ],
)
def test_mask(text: str, masked: str) -> None:
    assert mask(text) == masked
    assert mask(masked) == masked


def test_known_values_are_masked_whole_and_longest_first() -> None:
    """`W4` is inside `W48`, so the longer one goes first; `W480` is another word and stays."""
    values = {"W4": "short", "W48": "order", "Ann Lee": "name"}
    assert mask_values("ann lee: W48, W4, W480", values) == "<name>: <order>, <short>, W480"


def test_distinct_texts_are_encoded_once() -> None:
    asked: list[list[str]] = []

    def encode(texts: list[str]) -> np.ndarray:
        asked.append(texts)
        return np.stack([np.full(384, len(text), np.float32) for text in texts])

    embed = CachedEmbed(lambda: encode, "fake", max_cached=2)
    assert np.asarray(embed(["a", "bb", "a"]))[:, 0].tolist() == [1.0, 2.0, 1.0]
    assert asked == [["a", "bb"]]
    embed(["bb", "ccc"])
    assert asked[1:] == [["ccc"]]
    embed(["bb"])
    assert len(asked) == 2
    embed(["a"])
    assert asked[2:] == [["a"]]


def test_call_larger_than_the_cache_is_answered_whole() -> None:
    embed = CachedEmbed(lambda: lambda texts: np.ones((len(texts), 384), np.float32), "fake", 1)
    assert np.shape(embed(["a", "b", "c"])) == (3, 384)


def test_model_is_loaded_on_the_first_text_only() -> None:
    loads: list[int] = []

    def load():
        loads.append(1)
        return lambda texts: np.ones((len(texts), 384), np.float32)

    embed = CachedEmbed(load, "fake", 9)
    assert np.shape(embed([])) == (0, 384)
    assert loads == []
    embed(["a"])
    embed(["b"])
    assert loads == [1]


def test_hashing_embed_is_unit_deterministic_and_about_words() -> None:
    texts: Sequence[str] = ["cancel the order", "cancel my order", "weather in Oslo", "..."]
    vectors = np.asarray(HashingEmbed()(texts))
    assert np.allclose(np.linalg.norm(vectors[:3], axis=1), 1.0)
    assert not vectors[3].any()
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]
    assert np.array_equal(vectors, HashingEmbed()(texts))


@pytest.mark.slow
def test_sentence_model_knows_paraphrases() -> None:
    embed = load_embedder(threads=1)
    vectors = np.asarray(
        embed(["the refund was refused", "the refund got denied", "the cat sleeps"])
    )
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > 0.7
    assert vectors[0] @ vectors[2] < 0.3

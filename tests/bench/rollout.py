"""Rollout: sampled tokens per second of our engine against the `generate` of the transformers library.

Temperature 1, no filters, every completion of full length, all prompts different; the prompt pass is in the time.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.learner.policy import use_threads
from components.protocols import Sampling
from components.rollout.transformers_engine import EngineSettings, TransformersEngine
from tests.bench import child, workload
from tests.bench.learner import model_folder
from tests.bench.measure import Figure, Part, speed
from tests.bench.workload import Size, Workload

BATCHES = (1, 16, 64)
SPEED_AIM = 1.65
"""At batch 16: 240 tokens/s where `generate` gave 145 on two cores."""


def measure(size: Size, batches: tuple[int, ...] = BATCHES) -> Part:
    folder = model_folder(size)
    made = workload.make(size, folder, AutoTokenizer.from_pretrained(folder), max(batches))
    answers: dict[str, list[dict[str, Any]]] = {"ours": [], "generate": []}
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as scratch:
        path = workload.save(made, Path(scratch) / "workload.json")
        for _ in range(size.rounds):
            for side, found in answers.items():
                arguments = {"workload": str(path), "batches": batches}
                found.append(child.call(f"tests.bench.rollout:{side}", arguments, size.threads))
    figures, ratios = [], []
    for batch in batches:
        pair = [
            Figure(f"{name}, batch {batch}", "tokens/s", _rates(answers[side], batch), role)
            for side, name, role in (
                ("ours", "our engine", "ours"),
                ("generate", "transformers generate", "peer"),
            )
        ]
        figures += pair
        ratios.append(speed(pair[0], pair[1], SPEED_AIM if batch == 16 else None))
    for side, name, role in (("ours", "our", "ours"), ("generate", "generate", "peer")):
        peaks = tuple(answer["peak_mb"] for answer in answers[side])
        figures.append(Figure(f"{name} peak memory", "MB", peaks, role))
    facts = {"tokens of each completion": size.completion_tokens}
    return Part("rollout", _setup(size), tuple(figures), tuple(ratios), facts)


def _rates(answers: list[dict[str, Any]], batch: int) -> tuple[float, ...]:
    return tuple(rate for answer in answers for rate in answer["rates"][str(batch)])


def _setup(size: Size) -> str:
    return (
        f"{size.prompt_tokens}-token prompts, {size.completion_tokens} sampled tokens each, {size.model}, {size.dtype}, "
        f"{size.threads} threads; {size.rounds} processes a side x {size.steps} batches"
    )


def _model(given: Workload) -> Any:
    dtype = getattr(torch, given.dtype)
    return AutoModelForCausalLM.from_pretrained(given.model_dir, dtype=dtype).eval()


def ours(arguments: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second of our engine by batch size."""
    given = workload.load(arguments["workload"])
    use_threads(given.threads)
    model = _model(given)
    length = given.completion_tokens
    room = max(map(len, given.prompts_P)) + length
    rates: dict[str, list[float]] = {}
    for batch in arguments["batches"]:
        engine = TransformersEngine(model, "base", EngineSettings(batch, room))
        seconds = []
        for repeat in range(given.steps + 1):
            engine.reset()
            begun = time.perf_counter()
            made = asyncio.run(_sample_all(engine, given.prompts_P[:batch], length, repeat))
            seconds.append(time.perf_counter() - begun)
            assert all(len(ids) == length for ids in made), "a completion stopped early"
        rates[str(batch)] = [batch * length / each for each in seconds[1:]]
    return {"rates": rates}


async def _sample_all(
    engine: TransformersEngine, prompts: list[list[int]], length: int, repeat: int
) -> list[tuple[int, ...]]:
    asked = [
        engine.sample(prompt, Sampling(length, seed=1000 * repeat + place))
        for place, prompt in enumerate(prompts)
    ]
    return [drawn.completion_ids for drawn in await asyncio.gather(*asked)]


@torch.inference_mode()
def generate(arguments: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second of the library by batch size."""
    given = workload.load(arguments["workload"])
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model = _model(given)
    length = given.completion_tokens
    options = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": True}
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    rates: dict[str, list[float]] = {}
    for batch in arguments["batches"]:
        prompts = torch.tensor(given.prompts_P[:batch])
        mask = torch.ones_like(prompts)
        seconds = []
        for _ in range(given.steps + 1):
            begun = time.perf_counter()
            made = model.generate(prompts, attention_mask=mask, **options, **plain)
            seconds.append(time.perf_counter() - begun)
            assert made.shape[1] == prompts.shape[1] + length, "a completion stopped early"
        rates[str(batch)] = [batch * length / each for each in seconds[1:]]
    return {"rates": rates}

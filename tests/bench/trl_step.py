"""GRPO steps of TRL's `GRPOTrainer`, run by TRL's own environment; prints one JSON line.

    python trl_step.py WORKLOAD.json [checkpointing]

Prompts, model, rank, lengths and threads are the workload's. Generation is forced to the full completion length, `beta`
is 0, one optimizer step per rollout, every second completion is rewarded; the first step is not counted. With
`checkpointing` activations are computed again in the backward pass, which is TRL's default: slower, in less memory.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Seconds of each optimizer step."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.begun = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.begun = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps.append(time.perf_counter() - self.begun)


def reward(completions: list[Any], **_: Any) -> list[float]:
    """Any reward with variance inside each group serves."""
    return [float(index % 2) for index in range(len(completions))]


def make_trainer(
    work: dict[str, Any], checkpointing: bool, scratch: str, clock: Clock
) -> GRPOTrainer:
    dtype = getattr(torch, work["dtype"])
    model = AutoModelForCausalLM.from_pretrained(work["model_dir"], dtype=dtype)
    groups, length = len(work["completions_PG"][0]), len(work["completions_PG"][0][0])
    config = GRPOConfig(
        output_dir=scratch,
        per_device_train_batch_size=len(work["texts_P"]) * groups,
        num_generations=groups,
        max_completion_length=length,
        generation_kwargs={"min_new_tokens": length},
        beta=0.0,
        learning_rate=1e-4,
        max_steps=work["steps"] + 1,
        gradient_checkpointing=checkpointing,
        bf16=work["dtype"] == "bfloat16",
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": text} for text in work["texts_P"]]),
        processing_class=AutoTokenizer.from_pretrained(work["model_dir"]),
        peft_config=LoraConfig(
            r=work["rank"], lora_alpha=2 * work["rank"], target_modules="all-linear"
        ),
        callbacks=[clock],
    )


def main() -> None:
    work = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(work["threads"])
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(work, "checkpointing" in sys.argv[2:], scratch, clock)
        sampling = time_sampling(trainer)
        trainer.train()
    whole = clock.steps[1:]
    tokens = next(line["num_tokens"] for line in trainer.state.log_history if "num_tokens" in line)
    print(
        json.dumps(
            {
                "whole": whole,
                "sampling": sampling[1:],
                "update": [a - b for a, b in zip(whole, sampling[1:], strict=True)],
                "tokens": int(tokens),
                "peak_mb": peak_mb(),
            }
        )
    )


def time_sampling(trainer: GRPOTrainer) -> list[float]:
    """Seconds of each generation, filled while training: a stopwatch around a library's method, in its own process."""
    sampling: list[float] = []
    generate = trainer._generate

    def timed(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        made = generate(*args, **kwargs)
        sampling.append(time.perf_counter() - begun)
        return made

    trainer._generate = timed
    return sampling


def peak_mb() -> float:
    """Largest resident memory of this process, in MB (10^6 bytes)."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()

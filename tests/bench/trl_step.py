"""One GRPO step of TRL's `GRPOTrainer`, run by TRL's own environment; prints one JSON line.

Usage: python trl_step.py MODEL_FOLDER PROMPTS.json RANK NUM_COMPLETIONS COMPLETION_TOKENS THREADS STEPS

Generation is forced to the full completion length, `beta` is 0, one optimizer step per rollout; the first step is not
counted. Memory is the peak resident size of this process.
"""

import json
import resource
import sys
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


def main() -> None:
    folder, prompts_file, rank, num, length, threads, steps = sys.argv[1:8]
    torch.set_num_threads(int(threads))
    prompts = json.loads(Path(prompts_file).read_text())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = len(prompts) * int(num)
    config = GRPOConfig(
        output_dir="/tmp/trl-step",
        per_device_train_batch_size=rows,
        num_generations=int(num),
        max_completion_length=int(length),
        generation_kwargs={"min_new_tokens": int(length)},
        beta=0.0,
        learning_rate=1e-4,
        max_steps=int(steps) + 1,
        gradient_checkpointing=False,
        bf16=True,
        use_cpu=True,
        report_to=[],
        logging_steps=1000,
        save_strategy="no",
        disable_tqdm=True,
    )
    clock = Clock()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=int(rank), lora_alpha=2 * int(rank), target_modules="all-linear"),
        callbacks=[clock],
    )
    sampling: list[float] = []
    generate = trainer._generate

    def timed(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        made = generate(*args, **kwargs)
        sampling.append(time.perf_counter() - begun)
        return made

    trainer._generate = timed  # a stopwatch around a library's method, in its own process
    # The batch is prepared inside the step only from the second step on in some versions: time the whole loop too.
    begun = time.perf_counter()
    trainer.train()
    whole = time.perf_counter() - begun
    counted = clock.steps[1:]
    print(
        json.dumps(
            {
                "steps": counted,
                "sampling": sampling[1:],
                "whole_s": whole,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()

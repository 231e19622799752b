"""A vLLM server as the rollout engine: exact token ids in and out over HTTP, adapters loaded hot.

Contract with the server (vLLM's OpenAI-compatible API):

    POST /v1/completions            prompt as token ids; `return_token_ids` gives the sampled ids, the stop token
                                    included, and `logprobs: 0` the log-probability of each
    POST /v1/load_lora_adapter      {"lora_name", "lora_path"}; the path is as the server sees it
    POST /v1/unload_lora_adapter    {"lora_name"}

Start the server with `--enable-lora --logprobs-mode processed_logprobs` (log-probabilities at the sampling temperature,
not of the raw logits) and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`. Every version is loaded under a name of its own: a
server keeps cached prefixes by name, so a name used again would answer with another version's keys and values.

Proved so far: the requests made and the answers understood, against a small fake of the server. Not yet proved here: a
real server, and its log-probabilities beside the trainer's.

Our choice: end-of-text is ignored and only `stop_ids` end a completion, as in the other engines. Only calls that
cannot have had an effect on weights are repeated: a refused connection, 429 or 503.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel, ValidationError

from components.errors import ConfigError, ModelCallError
from components.plugins import plugin
from components.protocols import Completion, Sampling

BUSY = (429, 503)


@plugin
class Vllm:
    url: str = "http://127.0.0.1:8000"
    """Root of the server, without `/v1`."""
    base_model: str = "base"
    """Name the server gives the model without adapter."""
    timeout_s: float = 600.0
    """Longest wait for one answer."""
    max_attempts: int = 4
    """Tries of a call while the server is busy or not there, the first included."""
    backoff_s: float = 0.5
    """Wait before the second try; it doubles from try to try."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end a completion, the renderer's `stop_ids`."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be at least 1, got {self.max_attempts!r}")

    def connect(
        self, policy_version: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> "VllmEngine":
        """An engine on the model without adapter; `transport` replaces the network."""
        client = httpx.AsyncClient(
            base_url=self.url, timeout=self.timeout_s, transport=transport, trust_env=False
        )
        return VllmEngine(self, client, policy_version)


class _Logprobs(BaseModel):
    token_logprobs: list[float]


class _Choice(BaseModel):
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str


class _Answer(BaseModel):
    choices: list[_Choice]


class VllmEngine:
    """protocols.Engine over one server; close it with `aclose`."""

    def __init__(self, settings: Vllm, client: httpx.AsyncClient, policy_version: str) -> None:
        self.policy_version = policy_version
        self._settings = settings
        self._client = client
        self._model = settings.base_model

    async def load_adapter(self, folder: Path, policy_version: str) -> None:
        """Serve this adapter from the next call on, and let the server drop the one before.

        Raises:
            ModelCallError: the server refuses it, or the version is the one already served.
        """
        name = f"policy-{policy_version}"
        if name == self._model:
            raise ModelCallError(
                f"version {policy_version!r} is already served; weights that changed need a new version"
            )
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        previous, self._model, self.policy_version = self._model, name, policy_version
        if previous != self._settings.base_model:
            await self._post("/v1/unload_lora_adapter", {"lora_name": previous})

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Draw one completion.

        Raises:
            ModelCallError: the server cannot be reached, refuses, or answers without ids or log-probabilities.
        """
        if not prompt_ids:
            raise ModelCallError("the prompt is empty: expected at least one token")
        version = self.policy_version
        response = await self._post(
            "/v1/completions",
            {
                "model": self._model,
                "prompt": list(prompt_ids),
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "seed": sampling.seed,
                "logprobs": 0,
                "return_token_ids": True,
                "ignore_eos": True,
                "stop_token_ids": sorted(self._settings.stop_ids),
                "skip_special_tokens": False,
            },
        )
        return _completion(response, version)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        wait_s = self._settings.backoff_s
        for attempt in range(1, self._settings.max_attempts + 1):
            is_last = attempt == self._settings.max_attempts
            try:
                response = await self._client.post(path, json=body)
            except httpx.ConnectError as error:
                if is_last:
                    raise self._unreachable(path, attempt, error) from error
            except httpx.HTTPError as error:
                raise self._unreachable(path, attempt, error) from error
            else:
                if response.status_code == 200:
                    return response
                if is_last or response.status_code not in BUSY:
                    raise ModelCallError(
                        f"{self._settings.url}{path} refused with {response.status_code}: "
                        f"{response.text[:300]!r}"
                    )
            await asyncio.sleep(wait_s)
            wait_s *= 2
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, path: str, attempt: int, error: Exception) -> ModelCallError:
        return ModelCallError(
            f"{self._settings.url}{path} gave no answer in attempt {attempt}: "
            f"{type(error).__name__}: {error}; is the server running?"
        )


def _completion(response: httpx.Response, policy_version: str) -> Completion:
    try:
        choice = _Answer.model_validate_json(response.content).choices[0]
    except (ValidationError, IndexError) as error:
        raise ModelCallError(
            "the server's answer lacks token ids or log-probabilities, expected vLLM with "
            f"`return_token_ids`: {response.text[:300]!r}"
        ) from error
    logprobs = choice.logprobs.token_logprobs
    if len(logprobs) != len(choice.token_ids) or choice.finish_reason not in ("stop", "length"):
        raise ModelCallError(
            f"the server answered {len(choice.token_ids)} token ids with {len(logprobs)} "
            f"log-probabilities and finish reason {choice.finish_reason!r}, expected as many of each "
            "and `stop` or `length`"
        )
    return Completion(
        tuple(choice.token_ids), tuple(logprobs), choice.finish_reason, policy_version
    )

"""How a policy gets its engine, and how a later policy takes that engine over."""

import asyncio
from types import SimpleNamespace
from typing import Any

from components.protocols import Completion, Sampling
from flows import policies
from flows.settings import Engine, Model
from tests.fakes import ByteTokenizer, tiny_llama

PROMPT = tuple(range(1, 41))


def resources(**engine: Any) -> Any:
    settings = SimpleNamespace(engine=Engine(slots=4, **engine), model=Model(max_context=96))
    return SimpleNamespace(settings=settings)


def policy(seed: int) -> Any:
    return SimpleNamespace(tokenizer=ByteTokenizer(), merged=lambda: tiny_llama(seed))


def drawn(actor: policies.Actor) -> list[Completion]:
    async def main() -> list[Completion]:
        asks = [actor.engine.sample(PROMPT, Sampling(12, seed=seed)) for seed in range(3)]
        return await asyncio.gather(*asks)

    return asyncio.run(main())


def test_an_engine_taken_over_samples_bit_for_bit_as_a_new_one() -> None:
    r = resources()
    first = policies.actor_of(r, policy(0), "v1")
    before = drawn(first)
    second = policies.actor_of(r, policy(1), "v2", first)
    assert second.engine is first.engine
    assert second.engine.policy_version == "v2"
    found = drawn(second)
    assert found == drawn(policies.actor_of(r, policy(1), "v2"))
    assert found != before


def test_the_speed_of_an_engine_is_that_of_the_policy_it_serves_now() -> None:
    r = resources()
    first = policies.actor_of(r, policy(0), "v1")
    assert policies.tokens_per_s(first.engine) == 0.0
    drawn(first)
    assert policies.tokens_per_s(first.engine) > 0.0
    assert policies.tokens_per_s(policies.actor_of(r, policy(1), "v2", first).engine) == 0.0

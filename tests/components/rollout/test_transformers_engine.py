"""The engine against the library's own generation and forward pass, on a two-layer Llama in float32.

Tolerance: float32 keeps 24 bits, so a logit of magnitude 50 carries 3e-6, and sums of 32 to 48 products in another
order a few times that; 1e-4 is well above the one and far below any error of meaning (a wrong position, mask or
temperature moves log-probabilities by 0.01 and more).
"""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MambaConfig, MistralConfig, Qwen3Config

from components.errors import ConfigError, ModelCallError
from components.plugins import make
from components.protocols import Completion, Sampling
from components.rollout.transformers_engine import EngineSettings, TransformersEngine
from tests.fakes import VOCABULARY, tiny_llama

TOLERANCE = 1e-4
SMALL = EngineSettings(num_slots=8, slot_tokens=96, step_tokens=64)

Ask = tuple[Sequence[int], Sampling]


def prompts(count: int, length: int = 20, seed: int = 0) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(length)] for _ in range(count)]


def engine(settings: EngineSettings = SMALL, seed: int = 0) -> TransformersEngine:
    return TransformersEngine(tiny_llama(seed), "v1", settings)


def together(model: TransformersEngine, asks: Sequence[Ask]) -> list[Completion]:
    async def gather() -> list[Completion]:
        return await asyncio.gather(*[model.sample(*ask) for ask in asks])

    return asyncio.run(gather())


def alone(model: TransformersEngine, prompt: Sequence[int], sampling: Sampling) -> Completion:
    return together(model, [(prompt, sampling)])[0]


@torch.no_grad()
def full_logprobs(
    model: torch.nn.Module, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1
) -> list[float]:
    """Log-probabilities of a completion from one forward pass of the library over everything."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].double() / temperature
    chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])
    return chosen.flatten().tolist()


def close(found: Sequence[float], expected: Sequence[float]) -> bool:
    return list(found) == pytest.approx(list(expected), abs=TOLERANCE)


# --- exactness --------------------------------------------------------------------------------------------------------


def test_greedy_tokens_are_those_of_generate() -> None:
    model = tiny_llama()
    asks = [(prompt, Sampling(24, temperature=0)) for prompt in prompts(5)]
    found = together(TransformersEngine(model, "v1", SMALL), asks)
    for (prompt, _), completion in zip(asks, found, strict=True):
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert list(completion.completion_ids) == expected[0, len(prompt) :].tolist()
        assert close(completion.logprobs, full_logprobs(model, prompt, completion.completion_ids))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_logprobs_are_those_of_a_full_forward_pass(temperature: float) -> None:
    model = tiny_llama()
    lengths = (1, 2, 9, 30, 61)
    asks = [
        (prompts(1, length, seed=length)[0], Sampling(20, temperature, seed=length))
        for length in lengths
    ]
    for (prompt, _), drawn in zip(
        asks, together(TransformersEngine(model, "v1", SMALL), asks), strict=True
    ):
        assert len(drawn.completion_ids) == len(drawn.logprobs) == 20
        expected = full_logprobs(model, prompt, drawn.completion_ids, temperature)
        assert close(drawn.logprobs, expected)
        assert min(drawn.logprobs) < max(drawn.logprobs) < 0


def test_a_model_with_other_attention_heads_and_norms_needs_nothing_else() -> None:
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.3,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    drawn = alone(TransformersEngine(model, "v1", SMALL), [3, 1, 4, 1, 5], Sampling(12, seed=1))
    assert close(drawn.logprobs, full_logprobs(model, [3, 1, 4, 1, 5], drawn.completion_ids))


def test_the_model_keeps_its_own_attention_outside_the_engine() -> None:
    model = tiny_llama()
    before = model.config._attn_implementation
    alone(TransformersEngine(model, "v1", SMALL), [1, 2, 3], Sampling(2))
    assert model.config._attn_implementation == before


def test_a_prompt_longer_than_a_step_is_computed_in_pieces() -> None:
    """61 tokens in steps of at most 8, beside short ones: the same tokens as in one piece."""
    asks = [(prompt, Sampling(6, seed=3)) for prompt in (*prompts(3, 4), *prompts(1, 61, seed=9))]
    small_steps = EngineSettings(num_slots=8, slot_tokens=96, step_tokens=8)
    pieces, whole = engine(small_steps), engine()
    for left, right in zip(together(pieces, asks), together(whole, asks), strict=True):
        assert left.completion_ids == right.completion_ids
        assert close(left.logprobs, right.logprobs)
    assert pieces.stats.num_computed == whole.stats.num_computed == 3 * 4 + 61
    assert pieces.stats.num_steps > whole.stats.num_steps


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_the_stop_token_ends_the_completion_and_belongs_to_it() -> None:
    prompt = prompts(1)[0]
    free = alone(engine(), prompt, Sampling(20, seed=5))
    stop = free.completion_ids[7]
    first = free.completion_ids.index(stop)
    settings = EngineSettings(num_slots=2, slot_tokens=96, stop_ids=frozenset({stop}))
    drawn = alone(engine(settings), prompt, Sampling(20, seed=5))
    assert drawn.completion_ids == free.completion_ids[: first + 1]
    assert drawn.finish_reason == "stop"
    assert len(drawn.logprobs) == first + 1
    assert free.finish_reason == "length"


def test_a_completion_of_one_token() -> None:
    drawn = alone(engine(), [5], Sampling(1))
    assert (len(drawn.completion_ids), drawn.finish_reason) == (1, "length")
    assert drawn.policy_version == "v1"


def test_the_context_can_be_filled_to_the_last_token() -> None:
    model = engine(EngineSettings(num_slots=1, slot_tokens=16))
    assert model.context_tokens == 16
    assert len(alone(model, prompts(1, 10)[0], Sampling(6)).completion_ids) == 6


# --- prefix reuse -----------------------------------------------------------------------------------------------------


def test_the_next_turn_computes_only_what_is_new() -> None:
    """Turn 2 = 20 prompt + 5 sampled + 4 observed tokens; 24 have keys, the last sampled one does not."""
    reusing, fresh = engine(), engine()
    prompt = prompts(1)[0]
    first = alone(reusing, prompt, Sampling(5, seed=1))
    second_prompt = [*prompt, *first.completion_ids, 1, 2, 3, 4]
    second = alone(reusing, second_prompt, Sampling(8, seed=2))
    expected = alone(fresh, second_prompt, Sampling(8, seed=2))
    assert (reusing.stats.num_computed, reusing.stats.num_reused) == (20 + 5, 24)
    assert second.completion_ids == expected.completion_ids
    assert close(second.logprobs, expected.logprobs)


def test_samples_of_one_task_share_its_prompt() -> None:
    """Four samples of 40 tokens: one computes 40, three copy 39 and compute the last."""
    model = engine()
    prompt = prompts(1, 40)[0]
    drawn = together(model, [(prompt, Sampling(6, seed=seed)) for seed in range(4)])
    assert (model.stats.num_computed, model.stats.num_reused) == (40 + 3, 3 * 39)
    assert len({each.completion_ids for each in drawn}) == 4
    for seed, each in enumerate(drawn):
        expected = alone(engine(), prompt, Sampling(6, seed=seed))
        assert each.completion_ids == expected.completion_ids
        assert close(each.logprobs, expected.logprobs)


def test_a_common_beginning_is_copied_between_tasks() -> None:
    """Three tasks share 30 of 40 tokens: 40 + 10 + 10 are computed, 60 copied."""
    model = engine()
    system = prompts(1, 30)[0]
    asks = [([*system, *tail], Sampling(6, seed=1)) for tail in prompts(3, 10, seed=4)]
    drawn = together(model, asks)
    assert (model.stats.num_computed, model.stats.num_reused) == (60, 60)
    for ask, each in zip(asks, drawn, strict=True):
        expected = alone(engine(), *ask)
        assert each.completion_ids == expected.completion_ids
        assert close(each.logprobs, expected.logprobs)


def test_what_running_sequences_share_is_read_once() -> None:
    """Tasks with 40 of 45 tokens in common and lengths of 4, 6 and 8: read once in the five steps in which two or three
    of them run, which is from the second token to the sixth of the second."""
    model = engine()
    system = prompts(1, 40)[0]
    asks = [
        ([*system, *tail], Sampling(4 + 2 * index, seed=3))
        for index, tail in enumerate(prompts(3, 5, seed=5))
    ]
    drawn = together(model, asks)
    assert model.stats.num_shared == 5 * 40
    for ask, each in zip(asks, drawn, strict=True):
        expected = alone(engine(), *ask)
        assert each.completion_ids == expected.completion_ids
        assert close(each.logprobs, expected.logprobs)


def test_sequences_that_move_together_go_on_as_if_they_had_not() -> None:
    """Twelve of different lengths: as the short ones end, the long ones move to the first slots."""
    settings = EngineSettings(num_slots=12, slot_tokens=96, step_tokens=128)
    model = engine(settings)
    asks = [
        (prompt, Sampling(30 if index in {0, 11} else 3 + index % 4, seed=index))
        for index, prompt in enumerate(prompts(12, 20, seed=9))
    ]
    drawn = together(model, asks)
    for ask, each in zip(asks, drawn, strict=True):
        expected = alone(engine(settings), *ask)
        assert each.completion_ids == expected.completion_ids
        assert close(each.logprobs, expected.logprobs)
    assert model.stats.num_moved > 0
    for place in (1, 11):  # one that ended, into whose slot another moved, and one that moved
        computed = model.stats.num_computed
        longer = [*asks[place][0], *drawn[place].completion_ids, 5]
        found = alone(model, longer, Sampling(4, seed=6))
        assert model.stats.num_computed == computed + 2, "the last sampled token and the new one"
        assert close(found.logprobs, alone(engine(settings), longer, Sampling(4, seed=6)).logprobs)


def test_a_slot_that_holds_a_part_of_the_beginning_copies_the_rest() -> None:
    """Both slots hold strangers that begin alike; each next task keeps 40 tokens of its slot or gets what it lacks."""
    settings = EngineSettings(num_slots=2, slot_tokens=96)
    model = engine(settings)
    start, tails = prompts(1, 40)[0], prompts(6, 8, seed=2)
    asks = [
        ([*start[: 20 + 4 * index], *tail], Sampling(5, seed=index))
        for index, tail in enumerate(tails)
    ]
    for ask in (*asks, *asks[::-1], (start, Sampling(5, seed=9))):
        found, expected = alone(model, *ask), alone(engine(settings), *ask)
        assert found.completion_ids == expected.completion_ids
        assert close(found.logprobs, expected.logprobs)


def test_conversations_that_wait_for_each_other_keep_their_slots_from_strangers() -> None:
    """Two idle slots with one history go on with the same 20 tokens and other ends: one computes them, the other waits,
    and a stranger that comes with them takes the empty slot."""
    settings = EngineSettings(num_slots=3, slot_tokens=96)
    model = engine(settings)
    history, same = prompts(2, 20)
    first = together(model, [(history, Sampling(2, seed=1)), (history, Sampling(2, seed=1))])
    assert first[0].completion_ids == first[1].completion_ids
    longer = [*history, *first[0].completion_ids, *same]
    asks = [
        ([*longer, 7], Sampling(4, seed=2)),
        ([*longer, 8], Sampling(4, seed=3)),
        (prompts(1, 15, seed=4)[0], Sampling(4, seed=4)),
    ]
    before = model.stats.num_computed
    for ask, found in zip(asks, together(model, asks), strict=True):
        expected = alone(engine(settings), *ask)
        assert found.completion_ids == expected.completion_ids
        assert close(found.logprobs, expected.logprobs)
    # One of the two computes the last sampled token, 20 that are the same, and its end; the other its end alone.
    assert model.stats.num_computed - before == (1 + 20 + 1) + 1 + 15


def test_many_conversations_of_every_length_go_on_as_in_an_engine_of_their_own() -> None:
    """40 conversations of up to three turns over 24 slots, which begin alike in part; every fifth is broken off."""
    settings = EngineSettings(num_slots=24, slot_tokens=160, step_tokens=48)
    model = engine(settings)
    rng = Random(5)
    start = prompts(1, 40)[0]
    drawn: list[tuple[Ask, Completion]] = []

    async def converse(number: int) -> None:
        history = [*start[: rng.choice([0, 10, 33, 40])], *prompts(1, 1 + number % 9, number)[0]]
        for turn in range(1 + number % 3):
            length = 25 if number % 9 == 0 else rng.randrange(1, 14)
            ask = (tuple(history), Sampling(length, seed=100 * number + turn))
            drawn.append((ask, await model.sample(*ask)))
            history += [*drawn[-1][1].completion_ids, *prompts(1, 1 + turn, number + turn)[0]]

    async def main() -> None:
        tasks = [asyncio.ensure_future(converse(number)) for number in range(40)]
        for number in range(len(tasks)):
            await asyncio.sleep(0)
            if number % 5 == 4:
                tasks[rng.randrange(number)].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert len(drawn) > 40
    assert model.stats.num_moved > 0
    assert model.stats.num_shared > 0
    assert model.stats.num_reused > 0
    for ask, found in drawn:
        expected = alone(engine(settings), *ask)
        assert found.completion_ids == expected.completion_ids
        assert close(found.logprobs, expected.logprobs)


def test_two_continuations_of_one_conversation_both_find_it() -> None:
    model = engine()
    prompt = prompts(1, 30)[0]
    first = alone(model, prompt, Sampling(5, seed=1))
    context = [*prompt, *first.completion_ids]
    drawn = together(
        model, [([*context, 7, 7], Sampling(4, seed=2)), ([*context, 8], Sampling(4, seed=3))]
    )
    # 34 of the context have keys: the one goes on in place, the other copies.
    assert model.stats.num_reused == 34 + 34
    for tail, seed, each in ((([7, 7]), 2, drawn[0]), (([8]), 3, drawn[1])):
        expected = alone(engine(), [*context, *tail], Sampling(4, seed=seed))
        assert each.completion_ids == expected.completion_ids


def test_the_same_prompt_again_computes_its_last_token_only() -> None:
    """After one sampled token the slot holds exactly the prompt; its last logits have to be had anew."""
    model = engine()
    prompt = prompts(1)[0]
    first, second = (alone(model, prompt, Sampling(1, seed=3)) for _ in range(2))
    assert first.completion_ids == second.completion_ids
    assert (model.stats.num_computed, model.stats.num_reused) == (20 + 1, 19)


def test_a_stranger_does_not_take_the_slot_of_a_conversation_that_goes_on() -> None:
    """Both slots are idle and the older one holds conversation A, whose next turn arrives after the stranger."""
    model = engine(EngineSettings(num_slots=2, slot_tokens=96))
    a, b, stranger = prompts(3)
    answer = alone(model, a, Sampling(5, seed=1))
    alone(model, b, Sampling(5, seed=1))
    together(model, [(stranger, Sampling(3)), ([*a, *answer.completion_ids, 4], Sampling(3))])
    assert model.stats.num_reused == 24


def test_reset_forgets_the_old_weights() -> None:
    model = tiny_llama(0)
    running = TransformersEngine(model, "v1", SMALL)
    prompt = prompts(1)[0]
    alone(running, prompt, Sampling(4))
    model.load_state_dict(tiny_llama(1).state_dict())
    running.reset("v2")
    found = alone(running, [*prompt, 9], Sampling(6, seed=2))
    assert found.policy_version == "v2"
    expected = alone(engine(seed=1), [*prompt, 9], Sampling(6, seed=2))
    assert found.completion_ids == expected.completion_ids
    assert running.stats.num_reused == 0


def test_reset_takes_another_model_of_any_shape() -> None:
    """The small one has 2 layers of 32; the other has 1 layer of 16 and another vocabulary and context."""
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    torch.manual_seed(1)
    other = AutoModelForCausalLM.from_config(config).eval()
    running = engine()
    alone(running, [1, 2, 3], Sampling(4))
    running.reset("v2", other)
    assert running.context_tokens == 32
    assert running.stats.num_sampled == 0
    drawn = alone(running, [1, 2, 3, 4], Sampling(8, seed=1))
    assert close(drawn.logprobs, full_logprobs(other, [1, 2, 3, 4], drawn.completion_ids))
    with pytest.raises(ModelCallError, match="expected 0 to 39"):
        alone(running, [40], Sampling(1))
    running.reset("v3", tiny_llama())
    assert alone(running, [1, 2], Sampling(4)).completion_ids == (
        alone(engine(), [1, 2], Sampling(4)).completion_ids
    )


# --- batching and determinism -----------------------------------------------------------------------------------------


def test_a_request_does_not_depend_on_its_neighbours() -> None:
    prompt, sampling = prompts(1, 25)[0], Sampling(15, seed=11)
    expected = alone(engine(), prompt, sampling)
    others = [
        (each, Sampling(length, seed=length))
        for length, each in enumerate(prompts(6, 33, seed=8), start=3)
    ]
    for place in (0, 3, 6):
        asks = [*others[:place], (prompt, sampling), *others[place:]]
        found = together(engine(), asks)[place]
        assert found.completion_ids == expected.completion_ids
        assert close(found.logprobs, expected.logprobs)


def test_more_requests_than_slots_wait_and_are_all_answered() -> None:
    asks = [
        (prompt, Sampling(3 + index % 7, seed=index))
        for index, prompt in enumerate(prompts(21, 12))
    ]
    narrow = engine(EngineSettings(num_slots=2, slot_tokens=32))
    wide = engine(EngineSettings(num_slots=21, slot_tokens=32))
    found, expected = together(narrow, asks), together(wide, asks)
    assert [each.completion_ids for each in found] == [each.completion_ids for each in expected]
    assert [len(each.completion_ids) for each in found] == [3 + index % 7 for index in range(21)]
    assert narrow.stats.num_steps > wide.stats.num_steps


def test_a_caller_may_ask_again_while_others_still_run() -> None:
    """A short conversation takes its second turn inside the long request's time: no step is added for it."""
    model = engine()
    long_prompt, short_prompt = prompts(2)

    async def converse() -> Completion:
        first = await model.sample(short_prompt, Sampling(4, seed=1))
        return await model.sample([*short_prompt, *first.completion_ids, 3], Sampling(4, seed=2))

    async def both() -> None:
        await asyncio.gather(model.sample(long_prompt, Sampling(30, seed=0)), converse())

    asyncio.run(both())
    assert model.stats.num_steps == 30
    assert model.stats.num_sampled == 30 + 4 + 4


def many_bits() -> str:
    """Completions of a mixed load as text, every bit of every log-probability included."""
    torch.set_num_threads(1)
    model = engine(EngineSettings(num_slots=3, slot_tokens=64))
    asks = [(each, Sampling(9, seed=index)) for index, each in enumerate(prompts(7, 30))]
    drawn = [*together(model, asks), *together(model, asks[::-1])]
    return "\n".join(
        f"{each.completion_ids} {[value.hex() for value in each.logprobs]}" for each in drawn
    )


def test_another_process_gives_the_same_bits() -> None:
    code = f"from {__name__} import many_bits; print(many_bits())"
    root = Path(__file__).parents[3]
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == many_bits()


def test_a_second_event_loop_finds_a_working_engine() -> None:
    """The first loop is left in the middle of a request; nothing of it may block the next."""
    model = engine(EngineSettings(num_slots=1, slot_tokens=64))

    tasks = []

    async def abandon() -> None:
        tasks.append(asyncio.ensure_future(model.sample([1, 2], Sampling(50))))
        for _ in range(4):
            await asyncio.sleep(0)
        assert not tasks[-1].done()

    def left_loop() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(abandon())
        loop.close()

    left_loop()
    assert len(alone(model, [3, 4], Sampling(5)).completion_ids) == 5
    left_loop()
    model.reset()
    assert len(alone(model, [3, 4], Sampling(5)).completion_ids) == 5


def test_a_cancelled_request_frees_its_slot() -> None:
    model = engine(EngineSettings(num_slots=1, slot_tokens=64))

    async def main() -> Completion:
        task = asyncio.ensure_future(model.sample([1, 2], Sampling(60)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        return await model.sample([3, 4], Sampling(5))

    assert len(asyncio.run(main()).completion_ids) == 5
    assert model.stats.num_sampled < 20


# --- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([], Sampling(4), "empty"),
        ([1] * 90, Sampling(7), "90 tokens and max_tokens 7 exceed the context of 96"),
        ([1], Sampling(0), "max_tokens must be at least 1, got 0"),
        ([1], Sampling(4, temperature=-1.0), "temperature"),
        ([1], Sampling(4, temperature=float("nan")), "temperature"),
        ([1, VOCABULARY], Sampling(4), f"expected 0 to {VOCABULARY - 1}"),
        ([-1], Sampling(4), "token ids from -1"),
    ],
)
def test_a_bad_request_is_refused_with_its_numbers(
    prompt: list[int], sampling: Sampling, words: str
) -> None:
    with pytest.raises(ModelCallError, match=words):
        alone(engine(), prompt, sampling)


def test_a_bad_request_does_not_disturb_its_neighbours() -> None:
    model = engine()

    async def main() -> list[Completion | BaseException]:
        return await asyncio.gather(
            model.sample([1, 2], Sampling(3)),
            model.sample([], Sampling(3)),
            return_exceptions=True,
        )

    good, bad = asyncio.run(main())
    assert isinstance(good, Completion)
    assert isinstance(bad, ModelCallError)


def test_weights_that_give_no_numbers_are_named_and_leave_nothing_behind() -> None:
    model = tiny_llama()
    running = TransformersEngine(model, "v7", SMALL)
    weight = model.model.layers[0].mlp.down_proj.weight
    good = weight.detach().clone()
    weight.data.fill_(float("nan"))
    with pytest.raises(ModelCallError, match=r"policy 'v7' gave logits that are not finite"):
        alone(running, prompts(1)[0], Sampling(4))
    weight.data.copy_(good)
    # The short one takes the failed one's slot; beside the long one its lane is read beyond its own tokens.
    asks = [(prompts(1, 3)[0], Sampling(4, seed=1)), (prompts(1, 40)[0], Sampling(4, seed=1))]
    for found, expected in zip(together(running, asks), together(engine(), asks), strict=True):
        assert close(found.logprobs, expected.logprobs)
    assert running.stats.num_reused == 0


def test_a_model_that_breaks_fails_every_caller_and_the_engine_goes_on() -> None:
    model = tiny_llama()
    running = TransformersEngine(model, "v1", SMALL)
    head = model.lm_head
    model.lm_head = torch.nn.Linear(5, 5)

    async def main() -> list[Completion | BaseException]:
        calls = [running.sample(prompt, Sampling(3)) for prompt in prompts(3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    for error in asyncio.run(main()):
        assert isinstance(error, ModelCallError)
        assert "the model failed: RuntimeError" in str(error)
    model.lm_head = head
    assert len(alone(running, [1, 2], Sampling(3)).completion_ids) == 3


def test_reset_in_the_middle_is_refused() -> None:
    model = engine()

    async def main() -> None:
        task = asyncio.ensure_future(model.sample([1, 2], Sampling(5)))
        await asyncio.sleep(0)
        with pytest.raises(ModelCallError, match="1 requests are in flight"):
            model.reset()
        await task

    asyncio.run(main())


def test_a_model_without_plain_attention_is_refused() -> None:
    small = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1}
    window = MistralConfig(
        **small,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
    )
    with pytest.raises(ConfigError, match="sliding_window=4"):
        TransformersEngine(AutoModelForCausalLM.from_config(window), "v1", SMALL)
    recurrent = AutoModelForCausalLM.from_config(MambaConfig(**small, state_size=4))
    with pytest.raises(ConfigError, match="plain causal attention"):
        TransformersEngine(recurrent, "v1", SMALL)


def test_a_layer_that_keeps_its_state_elsewhere_is_named() -> None:
    class Forgetful(torch.nn.Module):
        def forward(self, hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
            return hidden_states, None

    model = tiny_llama()
    model.model.layers[1].self_attn = Forgetful()
    with pytest.raises(ConfigError, match=r"does not attend in layers \[1\]"):
        TransformersEngine(model, "v1", SMALL)
    running, prompt = engine(), prompts(1)[0]
    alone(running, prompt, Sampling(4))
    with pytest.raises(ConfigError, match=r"does not attend in layers \[1\]"):
        running.reset("v2", model)
    found = alone(running, prompt, Sampling(4, seed=2))
    assert found.policy_version == "v1"
    assert close(found.logprobs, alone(engine(), prompt, Sampling(4, seed=2)).logprobs)


def test_settings_are_checked_and_found_by_name() -> None:
    settings = make("rollout", "transformers_engine", {"num_slots": 4, "stop_ids": [2, 3]})
    assert settings == EngineSettings(num_slots=4, stop_ids=frozenset({2, 3}))
    with pytest.raises(ConfigError, match="num_slots"):
        make("rollout", "transformers_engine", {"num_slots": 0})
    with pytest.raises(ConfigError, match="step_tokens must be at least num_slots"):
        EngineSettings(num_slots=9, step_tokens=8)


# --- the real policy --------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_135m_policy_samples_what_its_forward_pass_says(smollm2) -> None:
    """bfloat16 keeps 8 bits: a logit near 20 is rounded by up to 0.06, in the engine and in the reference alike, so
    single log-probabilities differ by a few tenths at most and by a few hundredths on average."""
    model = TransformersEngine(smollm2, "champion", EngineSettings(num_slots=4, slot_tokens=128))
    rng = Random(0)
    asks = [
        ([rng.randrange(100, 40000) for _ in range(40)], Sampling(16, seed=n)) for n in range(4)
    ]
    differences = []
    for (prompt, _), drawn in zip(asks, together(model, asks), strict=True):
        expected = full_logprobs(smollm2, prompt, drawn.completion_ids)
        differences += [
            abs(left - right) for left, right in zip(drawn.logprobs, expected, strict=True)
        ]
    assert sum(differences) / len(differences) < 0.1
    assert max(differences) < 0.6

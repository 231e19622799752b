"""The scripted engine answers in order and complains about everything its script did not foresee."""

import asyncio
from collections.abc import Sequence

import pytest

from components.errors import ModelCallError
from components.protocols import ParsedAction, Sampling
from components.records import Message, ToolCall
from components.rollout.scripted import ScriptedAnswer, ScriptedEngine

SAMPLING = Sampling(max_tokens=8)


def ask(engine: ScriptedEngine, prompt: Sequence[int], sampling: Sampling = SAMPLING):
    return asyncio.run(engine.sample(prompt, sampling))


def test_answers_come_in_order_with_certain_tokens() -> None:
    engine = ScriptedEngine([ScriptedAnswer((1, 2)), ScriptedAnswer((3,), finish_reason="length")])
    first, second = ask(engine, [9]), ask(engine, [9])
    assert (first.completion_ids, first.finish_reason) == ((1, 2), "stop")
    assert first.logprobs == (0.0, 0.0)
    assert (second.completion_ids, second.finish_reason) == ((3,), "length")
    assert (first.policy_version, engine.num_left) == ("scripted", 0)


def test_an_exhausted_script_says_which_call_was_too_many() -> None:
    engine = ScriptedEngine([ScriptedAnswer((1,))])
    ask(engine, [9])
    with pytest.raises(ModelCallError, match="call 2 came after its 1 answers"):
        ask(engine, [9])


def test_another_prompt_is_refused_where_it_differs_and_uses_no_answer() -> None:
    engine = ScriptedEngine([ScriptedAnswer((1,), prompt_ids=(5, 6, 7))])
    with pytest.raises(ModelCallError, match="differ at token 1, got 3 tokens, expected 3"):
        ask(engine, [5, 0, 7])
    with pytest.raises(ModelCallError, match="differ at token 2, got 2 tokens"):
        ask(engine, [5, 6])
    assert ask(engine, [5, 6, 7]).completion_ids == (1,)


def test_an_answer_over_the_limit_is_refused() -> None:
    engine = ScriptedEngine([ScriptedAnswer((1, 2, 3))])
    with pytest.raises(ModelCallError, match="has 3 tokens, the caller allows 2"):
        ask(engine, [9], Sampling(max_tokens=2))


class CodeRenderer:
    """Text as code points, 0 for the end of a turn."""

    stop_ids = frozenset({0})

    def prompt(self, messages, tools) -> tuple[int, ...]:
        return (1,)

    def observation(self, messages) -> tuple[int, ...]:
        return (2,)

    def completion(self, action: Message) -> tuple[int, ...]:
        calls = "".join(f"{call.name}{call.arguments}" for call in action.tool_calls)
        return (*map(ord, action.text + calls), 0)

    def parse(self, completion_ids) -> ParsedAction:
        return ParsedAction(Message("assistant", self.decode(completion_ids)), (), None)

    def decode(self, ids) -> str:
        return "".join(map(chr, ids))


def test_actions_are_rendered_as_the_policy_would_emit_them() -> None:
    call = Message("assistant", tool_calls=(ToolCall("c", "f", "{}"),))
    engine = ScriptedEngine.of_actions(["hi", call], CodeRenderer(), "v3")
    assert ask(engine, [9]).completion_ids == (104, 105, 0)
    second = ask(engine, [9])
    assert second.completion_ids == (102, 123, 125, 0)
    assert second.policy_version == "v3"

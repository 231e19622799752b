"""The in-process loop against the box world, with completions from a script."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from components import plugins
from components.environments.help_desk import HelpDesk
from components.errors import ModelCallError
from components.harnesses.tool_loop import ToolLoop
from components.protocols import Completion, Harness, RolloutPlan, Sampling, StepResult, World
from components.records import Message, Task, Trajectory, Verdict
from components.tokens import ChatRenderer, merge_prefixes
from tests.fakes import ByteTokenizer
from tests.fakes_world import BoxEpisode, BoxWorld

RENDERER = ChatRenderer(ByteTokenizer())
END = 257
TASK = BoxWorld().tasks(1, "test", Random(1))[0][0]
PEEK = f'peek {{"box": "{TASK.params["box"]}"}}'
ANSWER = str(TASK.params["number"])
PLAN = RolloutPlan("t-1", Sampling(max_tokens=64, seed=7), group_id="g-1", agent="desk")


class Script:
    """An engine that says given texts; token i of a completion has log-probability -(i + 1) / 8."""

    def __init__(self, *lines: str | Exception, cut: Sequence[int] = ()) -> None:
        self.lines, self.cut = lines, cut
        self.prompts: list[tuple[int, ...]] = []
        self.samplings: list[Sampling] = []

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        place = len(self.prompts)
        assert place < len(self.lines), "the script is exhausted"
        self.prompts.append(tuple(prompt_ids))
        self.samplings.append(sampling)
        line = self.lines[place]
        if isinstance(line, Exception):
            raise line
        is_cut = place in self.cut
        ids = (*line.encode(), *(() if is_cut else (END,)))
        logprobs = tuple(-(i + 1) / 8 for i in range(len(ids)))
        return Completion(ids, logprobs, "length" if is_cut else "stop", "policy-3")


def run(
    engine: Script,
    world: World | None = None,
    task: Task = TASK,
    plan: RolloutPlan = PLAN,
    max_context_tokens: int = 2048,
) -> Trajectory:
    loop: Harness = ToolLoop(max_context_tokens)
    return asyncio.run(loop.run(task, world or BoxWorld(), engine, RENDERER, plan))


def test_prompt_grows_by_exact_ids() -> None:
    engine = Script(PEEK, ANSWER)
    trajectory = run(engine)
    first, second = trajectory.turns
    assert first.prompt_ids == RENDERER.prompt(BoxWorld().open(TASK).opening, TASK.tools)
    assert second.prompt_ids == (
        *(first.prompt_ids or ()),
        *(first.completion_ids or ()),
        *RENDERER.observation(second.observation),
    )
    assert engine.prompts == [first.prompt_ids, second.prompt_ids]
    (sample,) = merge_prefixes(trajectory)
    said = [
        token for token, mine in zip(sample.input_ids_T, sample.action_mask_T, strict=True) if mine
    ]
    assert bytes(token for token in said if token != END).decode() == PEEK + ANSWER


def test_every_turn_records_what_was_sampled() -> None:
    trajectory = run(Script(PEEK, ANSWER))
    first, second = trajectory.turns
    assert (first.index, second.index) == (0, 1)
    assert first.completion_ids == (*PEEK.encode(), END)
    assert first.logprobs == tuple(-(i + 1) / 8 for i in range(len(PEEK) + 1))
    assert first.policy_version == trajectory.policy == "policy-3"
    assert [(s.kind, s.start, s.end) for s in first.segments] == [("tool_call", 0, len(PEEK))]
    assert second.segments[0].kind == "answer"
    assert first.action.tool_calls[0].parsed == {"box": TASK.params["box"]}
    assert [message.role for message in first.observation] == ["system", "user"]
    assert [message.text for message in second.observation] == [ANSWER]
    assert first.state_digest == second.state_digest
    assert first.usage is not None
    assert first.usage.output_tokens == len(PEEK) + 1
    assert first.finish_reason == "stop"
    assert first.error is None


def test_trajectory_carries_plan_task_and_verdict() -> None:
    solved = run(Script(PEEK, ANSWER))
    assert (solved.id, solved.group_id, solved.agent) == ("t-1", "g-1", "desk")
    assert (solved.task_id, solved.split, solved.stop_reason) == (TASK.id, "test", "done")
    assert (solved.outcome, solved.outcome_source) == (True, "verifier")
    assert {(f.kind, f.name): f.score for f in solved.feedback} == {
        ("criterion", "peeked"): 1.0,
        ("criterion", "said"): 1.0,
        ("outcome", "boxes"): 1.0,
    }
    guessed = run(Script(ANSWER))
    assert guessed.outcome is False
    assert {f.name: f.score for f in guessed.feedback} == {"peeked": 0.0, "said": 1.0, "boxes": 0.0}


def test_seeds_differ_by_turn_and_by_plan_and_repeat() -> None:
    def seeds(seed: int) -> list[int]:
        engine = Script(PEEK, ANSWER)
        run(engine, plan=replace(PLAN, sampling=replace(PLAN.sampling, seed=seed)))
        assert {sampling.max_tokens for sampling in engine.samplings} == {64}
        return [sampling.seed for sampling in engine.samplings]

    assert seeds(7) == seeds(7)
    assert len({*seeds(7), *seeds(8)}) == 4
    assert all(0 <= seed < 2**63 for seed in seeds(7))


def test_memory_stands_after_the_policy() -> None:
    lessons = "Lessons:\n- Peek before you answer."
    engine = Script(PEEK, ANSWER)
    trajectory = run(engine, plan=replace(PLAN, memory=lessons, memory_revision="r4"))
    policy, system = trajectory.turns[0].observation[:2]
    assert (policy.text, system) == ("Peek, then answer.", Message("system", lessons))
    assert lessons in RENDERER.decode(engine.prompts[0])
    assert trajectory.memory_revision == "r4"


def test_cut_off_completion_is_an_unparsable_action() -> None:
    """The help desk ends after the second one; what was cut is kept as sampled."""
    desk = HelpDesk()
    task = desk.tasks(1, "train", Random(1))[0][0]
    prose = "I would be happy to help you with"
    trajectory = run(Script(prose, 'get_order {"order": "W4', cut=(0, 1)), desk, task)
    assert trajectory.stop_reason == "unparsable"
    assert trajectory.outcome is False
    for turn in trajectory.turns:
        assert turn.finish_reason == "length"
        assert turn.error == "cut off by the token limit"
        assert turn.env_facts == {"unparsable": turn.error, "num_tool_errors": 0}
    first, second = trajectory.turns
    assert first.completion_ids == tuple(prose.encode())
    assert second.prompt_ids is not None
    assert second.prompt_ids[: len(first.prompt_ids or ()) + len(prose)] == (
        *(first.prompt_ids or ()),
        *prose.encode(),
    )


@pytest.mark.parametrize("said", ["", 'peek {"box": '])
def test_unreadable_completion_is_marked(said: str) -> None:
    trajectory = run(Script(said, ANSWER))
    assert trajectory.turns[0].action.marks[0].startswith("unparsable: ")
    assert trajectory.turns[0].error


def test_good_call_among_bad_ones_is_not_marked() -> None:
    trajectory = run(Script(f'{PEEK}\npeek {{"box": ', ANSWER))
    assert trajectory.turns[0].error is None
    assert [m.text for m in trajectory.turns[1].observation] == [ANSWER, "Error: no such box"]
    assert trajectory.outcome is True


def test_engine_failure_is_a_stop_reason() -> None:
    trajectory = run(Script(PEEK, ModelCallError("engine is gone")))
    assert trajectory.stop_reason == "error: model: engine is gone"
    assert len(trajectory.turns) == 1
    assert (trajectory.outcome, trajectory.outcome_source, trajectory.feedback) == (None, None, ())


def test_environment_failure_is_a_stop_reason() -> None:
    broken = replace(TASK, params={})
    trajectory = run(Script(), task=broken)
    assert trajectory.stop_reason == "error: episode: KeyError: 'box'"
    assert (trajectory.turns, trajectory.policy, trajectory.outcome) == ((), None, None)


def test_full_context_ends_the_episode_and_fails() -> None:
    """Room for the first prompt and its completion, not for the second prompt."""
    prompt = len(RENDERER.prompt(BoxWorld().open(TASK).opening, TASK.tools))
    trajectory = run(Script(PEEK), max_context_tokens=prompt + 64)
    assert trajectory.stop_reason == "length"
    assert len(trajectory.turns) == 1
    assert trajectory.outcome is False
    none = run(Script(), max_context_tokens=prompt + 63)
    assert (none.turns, none.stop_reason) == ((), "length")


def test_failing_verifier_leaves_the_outcome_open() -> None:
    class Broken(BoxWorld):
        def verify(self, task: Task, trajectory: Trajectory) -> Verdict:
            raise ZeroDivisionError("no scale")

    trajectory = run(Script(PEEK, ANSWER), Broken())
    assert trajectory.outcome is None
    assert trajectory.marks == ("verifier failed: ZeroDivisionError: no scale",)


def test_observations_keep_where_they_come_from() -> None:
    """What the first step returned was simulated; the opening was live."""

    class Simulated(BoxEpisode):
        def step(self, action: Message) -> StepResult:
            return replace(super().step(action), observation_source="simulated", fidelity=0.5)

    class SimulatedWorld(BoxWorld):
        def open(self, task: Task) -> BoxEpisode:
            return Simulated(task, self.max_turns)

    first, second = run(Script(PEEK, ANSWER), SimulatedWorld()).turns
    assert (first.observation_source, first.fidelity) == ("live", 1.0)
    assert (second.observation_source, second.fidelity) == ("simulated", 0.5)


def test_exhausted_script_is_not_hidden() -> None:
    with pytest.raises(AssertionError, match="exhausted"):
        run(Script(PEEK))


def test_violations_become_feedback() -> None:
    desk = HelpDesk(kinds=("cancel",), email_rate=0.0)
    task = desk.tasks(1, "train", Random(1))[0][0]
    order = task.params["said"]["order"]
    blind = f'cancel_order {{"order": "{order}"}}'
    trajectory = run(Script(blind, f"Order {order} is cancelled."), desk, task)
    assert [(f.kind, f.turn) for f in trajectory.feedback if f.source == "environment"] == [
        ("violation", 0)
    ]
    assert trajectory.outcome is False


def test_reference_solution_earns_success_through_the_loop() -> None:
    """Rendered, sampled, parsed and executed: what the clerk does survives the whole way."""
    desk = HelpDesk()
    for task, reference in desk.tasks(20, "train", Random(4)):
        lines = [
            action.text or "\n".join(f"{call.name} {call.arguments}" for call in action.tool_calls)
            for action in reference.actions
        ]
        trajectory = run(Script(*lines), desk, task)
        assert trajectory.outcome is True
        assert [message.role for message in trajectory.messages[:2]] == ["system", "user"]


def test_found_by_name() -> None:
    assert plugins.make("harnesses", "tool_loop", {"max_context_tokens": 512}) == ToolLoop(512)

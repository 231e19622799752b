"""tau-bench and tau2 files: rewards, reused tool ids, tool errors."""

from collections import Counter
from typing import Any

import orjson
import pytest

from components.ingestion.tau_bench import TauBench
from components.protocols import RawRecord, Rejected

from .logs import conversations, one, read, real, records_of

READER = TauBench()


def episode(**more: Any) -> dict[str, Any]:
    def call(text: str) -> dict[str, Any]:
        entry = {"id": "same", "function": {"name": "find", "arguments": text}}
        return {"role": "assistant", "content": None, "tool_calls": [entry]}

    def tool(text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": "same", "name": "find", "content": text}

    return {
        "task_id": 3,
        "trial": 1,
        "reward": 1.0,
        "info": {"task": {"actions": [{"name": "secret_solution"}]}},
        "traj": [
            {"role": "user", "content": "find it"},
            call('{"n": 1}'),
            tool("Error: not found"),
            call('{"n": 2}'),
            tool("found"),
            {"role": "assistant", "content": "Found."},
        ],
    } | more


def test_an_episode() -> None:
    """Both calls have one id; each result belongs to the call before it, so nothing is orphaned or unanswered."""
    t = one(READER, orjson.dumps([episode()]))
    assert [len(turn.observation) for turn in t.turns] == [1, 1, 1]
    assert [m.marks for m in t.messages] == [(), (), ("tool error",), (), (), ()]
    assert (t.task_id, t.outcome, t.outcome_source, t.stop_reason) == (
        "3",
        True,
        "environment",
        "done",
    )
    assert (t.feedback[0].kind, t.feedback[0].score) == ("outcome", 1.0)
    assert "secret_solution" not in str(t)


@pytest.mark.parametrize(
    ("reward", "outcome"), [(0.0, False), (0.5, False), (1, True), (None, None)]
)
def test_rewards(reward: float | None, outcome: bool | None) -> None:
    t = one(READER, orjson.dumps([episode(reward=reward)]))
    assert t.outcome is outcome
    assert len(t.feedback) == (reward is not None)


def test_an_episode_that_is_unreadable_does_not_stop_the_others() -> None:
    """A reward that is no number (NaN is not JSON), text, no task; the last episode is fine."""
    text = orjson.dumps(episode()).decode()
    broken = [
        text.replace('"reward":1.0', '"reward":NaN'),
        text.replace('"reward":1.0', '"reward":"good"'),
        text.replace('"task_id":3,', ""),
        text.replace('"traj":', '"other":'),
        text,
    ]
    found = read(READER, f"[{','.join(broken)}]".encode())
    assert [type(item).__name__ for item in found] == ["Rejected"] * 4 + ["RawRecord"]
    reasons = [item.reason for item in found if isinstance(item, Rejected)]
    assert "NaN" in reasons[0]
    assert "'good'" in reasons[1]


def test_trials_of_one_task_are_separate_and_the_same_twice_is_one() -> None:
    data = orjson.dumps([episode(), episode(trial=2), episode()])
    records = records_of(READER, data)
    assert len({record.id for record in records}) == len(conversations(READER, records)) == 2


def test_tau2_document() -> None:
    """Arguments are objects, results name their call by `id`, a customer's own call is no action of the agent."""
    call = {"id": "c", "name": "pay", "arguments": {"n": 1}, "requestor": "assistant"}
    mine = {"id": "u", "name": "reboot", "arguments": {}, "requestor": "user"}
    simulation = {
        "id": "s",
        "task_id": "t-9",
        "trial": 0,
        "termination_reason": "max_steps",
        "start_time": "2025-01-01T00:00:00",
        "reward_info": {"reward": 0.0},
        "messages": [
            {"role": "user", "content": None, "tool_calls": [mine]},
            {"role": "tool", "id": "u", "content": "rebooted", "requestor": "user"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call],
                "usage": {"prompt_tokens": 9},
            },
            {"role": "tool", "id": "c", "content": "no", "error": True},
        ],
    }
    document = {"info": {"agent_info": {"llm": "m-1"}}, "tasks": [], "simulations": [simulation]}
    t = one(READER, orjson.dumps(document, option=orjson.OPT_INDENT_2))
    assert (t.task_id, t.policy, t.stop_reason, t.outcome) == ("t-9", "m-1", "max_turns", False)
    assert len(t.turns) == 1
    assert t.turns[0].action.tool_calls[0].arguments == '{"n":1}'
    assert t.turns[0].usage is not None
    assert t.turns[0].usage.input_tokens == 9
    assert [m.marks for m in t.messages] == [(), (), (), ("tool error",)]
    assert t.started_at is not None


def test_broken_tau2_simulation_is_rejected_alone() -> None:
    found = read(READER, b'{"simulations": [5, {"task_id": "1", "messages": []}]}')
    assert [type(item).__name__ for item in found] == ["Rejected", "RawRecord"]


def test_real_airline_file() -> None:
    """The manifest's counts: 96 trajectories, 2544 messages, 555 calls, 34 errors, reward 1 in 40, all arguments parse."""
    data = real("tau_bench/gpt-4o-airline.prefix.json")
    records = records_of(READER, data)
    assert all(
        orjson.loads(data[record.start : record.end]) == record.payload for record in records
    )
    made = conversations(READER, records)
    messages = [message for t in made for message in t.messages]
    made_calls = [call for message in messages for call in message.tool_calls]
    assert (len(made), len(messages), len(made_calls)) == (96, 2544, 555)
    assert Counter(mark for message in messages for mark in message.marks) == {"tool error": 34}
    assert Counter(t.outcome for t in made) == {True: 40, False: 56}
    assert all(call.problem is None for call in made_calls)
    assert len({t.task_id for t in made}) == 34


@pytest.mark.parametrize(
    ("name", "num", "messages", "num_calls", "errors", "solved", "model"),
    [
        ("airline", 34, 980, 443, 6, 17, "gpt-4.1-mini-2025-04-14"),
        ("retail", 76, 1731, 589, 9, 64, "gpt-4.1-mini-2025-04-14"),
        ("mock_newer_schema", 6, 43, 8, 0, 6, "openai/gpt-4.1-mini"),
    ],
)
def test_real_tau2_files(
    name: str, num: int, messages: int, num_calls: int, errors: int, solved: int, model: str
) -> None:
    made = conversations(READER, records_of(READER, real(f"tau2_results/{name}.json")))
    flat = [message for t in made for message in t.messages]
    assert (len(made), len(flat)) == (num, messages)
    assert sum(len(message.tool_calls) for message in flat) == num_calls
    assert sum("tool error" in message.marks for message in flat) == errors
    assert sum(t.outcome is True for t in made) == solved
    assert {t.policy for t in made} == {model}


def test_record_stands_where_it_says() -> None:
    data = b'[{"task_id":1,"traj":[]} , ' + orjson.dumps(episode()) + b"]"
    first, second = read(READER, data)
    assert isinstance(first, RawRecord)
    assert isinstance(second, RawRecord)
    assert data[first.start : first.end] == b'{"task_id":1,"traj":[]}'
    assert orjson.loads(data[second.start : second.end]) == episode()

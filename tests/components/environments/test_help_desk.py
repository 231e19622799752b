"""The help desk's tasks and its verifier, checked without a model over several hundred tasks of each split."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from components import plugins
from components.environments import _help_desk_words as words
from components.environments._help_desk_tasks import KINDS
from components.environments.help_desk import HelpDesk
from components.errors import ConfigError, EnvError
from components.protocols import World
from components.records import Message, ReferenceSolution, Task, ToolCall, Trajectory, Turn
from components.serial import dump, load

SPLITS = ("train", "dev", "test")
NUM = 250
Solved = list[tuple[Task, ReferenceSolution]]


@pytest.fixture(scope="module")
def desk() -> HelpDesk:
    return HelpDesk()


@pytest.fixture(scope="module")
def solved(desk: HelpDesk) -> dict[str, Solved]:
    return {split: desk.tasks(NUM, split, Random(11)) for split in SPLITS}


def trajectory(*actions: Message, stop_reason: str = "done") -> Trajectory:
    turns = tuple(Turn(index, (), action) for index, action in enumerate(actions))
    return Trajectory("t", "desk", turns, stop_reason=stop_reason)


def say(text: str) -> Message:
    return Message("assistant", text)


def calls(*wanted: tuple[str, dict[str, object]]) -> Message:
    made = tuple(ToolCall(f"c{i}", name, json.dumps(args)) for i, (name, args) in enumerate(wanted))
    return Message("assistant", tool_calls=made)


def one_task(kind: str, seed: int = 0, **options: object) -> Task:
    return HelpDesk(kinds=(kind,), email_rate=0.0, **options).tasks(1, "train", Random(seed))[0][0]


@pytest.mark.parametrize("split", SPLITS)
def test_verifier_accepts_every_reference_solution(
    desk: HelpDesk, solved: dict[str, Solved], split: str
) -> None:
    assert len(solved[split]) == NUM
    for task, reference in solved[split]:
        verdict = desk.verify(task, trajectory(*reference.actions))
        assert verdict.success, (task.instruction, verdict.criteria)
        assert verdict.score == 1.0
        assert set(verdict.criteria.values()) == {1.0}


@pytest.mark.parametrize("split", SPLITS)
def test_idle_and_prose_policies_solve_nothing(
    desk: HelpDesk, solved: dict[str, Solved], split: str
) -> None:
    """Not even prose that holds every required fact: nothing was looked up, nothing was changed."""
    for task, reference in solved[split]:
        facts = " ".join(alternatives[0] for alternatives in task.params["goal"]["facts"])
        prose = [
            "",
            "I cannot do that.",
            "Sorry, we cannot. Order is packed, shipped, delivered, Monday.",
            facts,
            reference.actions[-1].text,
        ]
        for text in prose:
            assert desk.verify(task, trajectory(say(text))).success is False, (task, text)
        assert desk.verify(task, trajectory()).success is False
        without_reply = trajectory(*reference.actions[:-1], stop_reason="max_turns")
        assert desk.verify(task, without_reply).success is False


@pytest.mark.parametrize("split", SPLITS)
def test_wrong_arguments_are_rejected(
    desk: HelpDesk, solved: dict[str, Solved], split: str
) -> None:
    """Each argument of each last call, replaced by one that is valid but not what was wanted."""
    for task, reference in solved[split]:
        last = reference.actions[-2]
        call = last.tool_calls[0]
        for name, value in (call.parsed or {}).items():
            wrong = {**(call.parsed or {}), name: other_value(task, name, value)}
            changed = replace(last, tool_calls=(replace(call, arguments=json.dumps(wrong)),))
            actions = (*reference.actions[:-2], changed, reference.actions[-1])
            verdict = desk.verify(task, trajectory(*actions))
            assert verdict.success is False, (task.instruction, call, wrong)


def other_value(task: Task, name: str, value: object) -> object:
    shop = task.params["shop"]
    match name:
        case "order":
            return next(other for other in shop["orders"] if other != value)
        case "item":
            return next(
                other
                for other, row in shop["products"].items()
                if other != value
                and row["price"] not in (shop["products"][value]["price"],)
                and row["stock"] != shop["products"][value]["stock"]
            )
        case "amount":
            return int(str(value)) + 1
        case "reason":
            return "on_time" if value != "on_time" else "amount"
        case _:
            return "1 Nowhere Street"


def test_each_write_is_needed_and_only_once(desk: HelpDesk, solved: dict[str, Solved]) -> None:
    for task, reference in solved["train"]:
        kind = KINDS[task.params["kind"]]
        if kind.group == "read":
            continue
        *before, write, reply = reference.actions
        assert desk.verify(task, trajectory(*before, reply)).success is False
        if kind.wish in ("refund", "voucher", "cancel") and kind.group == "write":
            twice = desk.verify(task, trajectory(*before, write, write, reply))
            if kind.wish != "cancel":
                assert twice.criteria["state"] == 0.0
            else:
                assert twice.criteria["no_violation"] == 0.0


def test_verifier_judges_the_end_and_not_the_way(desk: HelpDesk) -> None:
    """Other lookups, several calls in one action, other words: what counts is the shop and the facts."""
    task = one_task("cancel")
    order = task.params["said"]["order"]
    both = calls(("get_order", {"order": order}), ("cancel_order", {"order": f"#{order.lower()}"}))
    detour = calls(("track_order", {"order": order}), ("get_order", {"order": "W000"}))
    reply = say(f"Done! I have canceled {order.lower()}, see you soon.")
    assert desk.verify(task, trajectory(detour, both, reply)).success


def test_what_the_verifier_reads_holds_no_solution(solved: dict[str, Solved]) -> None:
    for task, reference in solved["train"]:
        known = json.dumps(dump(task)["params"])
        assert not any(name in known for name in ("get_order", "track_order", 'escalate"', "call_"))
        assert reference.actions[-1].text not in known


def test_contradictory_and_refusing_replies_are_rejected(desk: HelpDesk) -> None:
    status = one_task("status")
    order = status.params["said"]["order"]
    look = calls(("get_order", {"order": order}))
    hedge = say(f"Order {order} is packed, shipped or delivered.")
    assert desk.verify(status, trajectory(look, hedge)).criteria["reply"] == 0.0

    delivery = one_task("delivery")
    order = delivery.params["said"]["order"]
    day = delivery.params["shop"]["orders"][order]["day"]
    look = calls(("track_order", {"order": order}))
    told = say(f"Order {order} has shipped and will be delivered on {day}.")
    assert desk.verify(delivery, trajectory(look, told)).success
    every_day = say(f"Order {order} comes on {', '.join(words.DAYS)}.")
    assert desk.verify(delivery, trajectory(look, every_day)).criteria["reply"] == 0.0

    address = one_task("address")
    order, street = address.params["said"]["order"], address.params["said"]["address"]
    look = calls(("get_order", {"order": order}))
    act = calls(("change_address", {"order": order, "address": street.upper() + "."}))
    liar = say(f"Sorry, we cannot send order {order} to {street}.")
    assert desk.verify(address, trajectory(look, act, liar)).criteria == {
        "state": 1.0,
        "reply": 0.0,
        "grounded": 1.0,
        "no_violation": 1.0,
    }


def test_only_a_call_that_was_done_shows_anything(desk: HelpDesk) -> None:
    """Neither a failed call that names the answer, nor the same answer looked up for another order."""
    task = one_task("status")
    order, shop = task.params["said"]["order"], task.params["shop"]
    status = shop["orders"][order]["status"]
    reply = say(f"Order {order} is {status}.")
    guess = calls(("get_order", {"order": order, "status": status}))
    assert desk.verify(task, trajectory(guess, reply)).criteria["grounded"] == 0.0
    for other, row in shop["orders"].items():
        row["status"] = status
        look = calls(("get_order", {"order": other}))
        verdict = desk.verify(task, trajectory(look, reply))
        assert verdict.success is (other == order)


def test_figures_are_whole_words(desk: HelpDesk) -> None:
    """`24` is not in `240`: the reply must hold the figure itself."""
    task = one_task("price")
    item = task.params["said"]["item"]
    price = task.params["shop"]["products"][item]["price"]
    look = calls(("get_product", {"item": item}))
    assert desk.verify(task, trajectory(look, say(f"The {item} is ${price}."))).success
    wrong = desk.verify(task, trajectory(look, say(f"The {item} is ${price}0.")))
    assert wrong.criteria["reply"] == 0.0


def test_breaking_the_policy_is_recorded_and_never_succeeds(desk: HelpDesk) -> None:
    task = one_task("cancel_refused")
    order = task.params["said"]["order"]
    episode = desk.open(task)
    blind = episode.step(calls(("escalate", {"order": order, "reason": "shipped"})))
    assert [(each.kind, each.turn, each.name) for each in blind.feedback] == [
        ("violation", 0, "escalate")
    ]
    episode.step(calls(("get_order", {"order": order})))
    forced = episode.step(calls(("cancel_order", {"order": order})))
    assert forced.feedback[0].turn == 2
    assert "shipped" in (forced.feedback[0].text or "")
    assert episode.shop.state["orders"][order]["status"] == "cancelled"
    done = trajectory(
        calls(("get_order", {"order": order})),
        calls(("cancel_order", {"order": order})),
        say(f"Order {order} is cancelled."),
    )
    verdict = desk.verify(task, done)
    assert verdict.success is False
    assert verdict.criteria["no_violation"] == 0.0


def test_errors_outside_the_agent_are_not_judged(desk: HelpDesk) -> None:
    task = one_task("status")
    verdict = desk.verify(task, trajectory(say("x"), stop_reason="error: model: gone"))
    assert (verdict.success, verdict.score, verdict.criteria) == (None, None, {})


def test_a_persons_turns_do_not_count(desk: HelpDesk) -> None:
    task, reference = desk.tasks(1, "train", Random(3))[0]
    failed = trajectory(say(""))
    rescue = tuple(
        Turn(index, (), action, executor="human")
        for index, action in enumerate(reference.actions, start=1)
    )
    assert desk.verify(task, replace(failed, turns=(*failed.turns, *rescue))).success is False


@pytest.mark.parametrize("split", SPLITS)
def test_operator_solution_is_the_whole_corrected_conversation(
    desk: HelpDesk, solved: dict[str, Solved], split: str
) -> None:
    for task, reference in solved[split][:60]:
        conversation = desk.operator_solution(task)
        roles = [message.role for message in conversation]
        assert roles == ["assistant", "tool"] * (len(roles) // 2) + ["assistant"]
        assert tuple(conversation[::2]) == reference.actions
        for action, answer in zip(conversation[:-1:2], conversation[1::2], strict=True):
            assert answer.tool_call_id == action.tool_calls[0].id
            assert not answer.text.startswith("Error")


# --- where tasks come from


def request(task: Task) -> str:
    """What is asked, whatever the words: the kind with the order's number, or with the product and its figures."""
    said, shop = task.params["said"], task.params["shop"]
    if task.params["kind"] in ("price", "stock"):
        return f"{task.params['kind']} {said['item']} {shop['products'][said['item']]}"
    return f"{task.params['kind']} {task.params['goal']['facts'][0]}"


def test_splits_share_no_task_and_no_request(solved: dict[str, Solved]) -> None:
    for what in (lambda task: task.id, lambda task: task.instruction, request):
        seen = [{what(task) for task, _ in solved[split]} for split in SPLITS]
        assert sum(map(len, seen)) == len(set().union(*seen))


def test_ids_are_unique_and_tell_the_content(solved: dict[str, Solved]) -> None:
    for split in SPLITS:
        assert len({task.id for task, _ in solved[split]}) == NUM
        assert all(task.split == split for task, _ in solved[split])


def test_same_seed_same_tasks(desk: HelpDesk, solved: dict[str, Solved]) -> None:
    assert desk.tasks(NUM, "dev", Random(11)) == solved["dev"]
    other = {task.id for task, _ in desk.tasks(NUM, "dev", Random(12))}
    assert other != {task.id for task, _ in solved["dev"]}


def test_ids_do_not_depend_on_the_process(desk: HelpDesk) -> None:
    code = (
        "from random import Random\n"
        "from components.environments.help_desk import HelpDesk\n"
        "print(' '.join(t.id for t, _ in HelpDesk().tasks(20, 'test', Random(5))))"
    )
    here = [task.id for task, _ in desk.tasks(20, "test", Random(5))]
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
        )
        assert done.stdout.split() == here


def test_training_never_hears_the_held_out_wordings(solved: dict[str, Solved]) -> None:
    for wish, known in words.KNOWN.items():
        assert not set(known) & set(words.NEW[wish])
    assert {task.params["wording"] for task, _ in solved["train"]} == {"known"}
    for split in ("dev", "test"):
        new = sum(task.params["wording"] == "new" for task, _ in solved[split])
        # Half of 250 with a standard deviation of 8: within five of them.
        assert 85 < new < 165


def test_texts_stay_short(desk: HelpDesk, solved: dict[str, Solved]) -> None:
    for task, reference in solved["test"]:
        system, customer = desk.open(task).opening
        assert len(system.text.split()) <= 90
        assert len(customer.text.split()) <= 30
        assert 2 <= len(reference.actions) <= 5
        answers = [m.text for m in desk.operator_solution(task) if m.role == "tool"]
        assert max(map(len, answers)) <= 70


def test_every_kind_and_tool_occurs_with_its_skills(
    desk: HelpDesk, solved: dict[str, Solved]
) -> None:
    tools = {tool["function"]["name"] for tool in desk.tools}
    assert not tools & set(KINDS)
    skills = Counter(skill for task, _ in solved["train"] for skill in task.required_skills)
    assert set(skills) == tools | set(KINDS)
    for task, reference in solved["train"]:
        used = {call.name for action in reference.actions for call in action.tool_calls}
        assert set(task.required_skills) == used | {task.params["kind"]}


def test_skill_weights_multiply_how_often(desk: HelpDesk) -> None:
    """The two exchange kinds have odds (0.45 + 0.25) / 6 : 1 - that = 0.132; times 20 they are 2.64, a share of 0.725."""
    aimed = desk.tasks(200, "train", Random(1), {"exchange_item": 20.0, "exchange_refused": 20.0})
    share = sum(KINDS[task.params["kind"]].wish == "exchange" for task, _ in aimed) / 200
    assert 0.60 < share < 0.85
    none = desk.tasks(200, "train", Random(1), {"get_order": 0.0})
    assert not any("get_order" in task.required_skills for task, _ in none)


def test_weights_that_leave_nothing_are_refused(desk: HelpDesk) -> None:
    nothing = dict.fromkeys(KINDS, 0.0)
    with pytest.raises(ValueError, match="no kind of request is left"):
        desk.tasks(1, "train", Random(1), nothing)
    with pytest.raises(ValueError, match=">= 0"):
        desk.tasks(1, "train", Random(1), {"price": -1.0})
    assert desk.tasks(0, "train", Random(1)) == []


def test_difficulty_knobs() -> None:
    easy = HelpDesk(kinds=("status", "cancel"), refusal_rate=0.0, email_rate=0.0)
    tasks = easy.tasks(60, "train", Random(2))
    assert {task.params["kind"] for task, _ in tasks} == {"status", "cancel"}
    assert all("order" in task.params["said"] for task, _ in tasks)
    unknown = HelpDesk(kinds=("cancel",), email_rate=1.0, new_wording_rate=1.0)
    for task, reference in unknown.tasks(40, "dev", Random(2)):
        assert reference.actions[0].tool_calls[0].name == "find_customer"
        assert task.params["wording"] == "new"
    refusing = HelpDesk(read_rate=0.0, refusal_rate=1.0).tasks(40, "train", Random(2))
    assert all(KINDS[task.params["kind"]].group == "refused" for task, _ in refusing)


def test_options_are_checked() -> None:
    made = plugins.make("environments", "help_desk", {"kinds": ["status"]})
    assert made == HelpDesk(kinds=("status",))
    for options in (
        {"kinds": ["statuss"]},
        {"read_rate": 0.8, "refusal_rate": 0.3},
        {"email_rate": -0.1},
        {"max_turns": 0},
        {"max_turn": 3},
    ):
        with pytest.raises(ConfigError):
            plugins.make("environments", "help_desk", options)


def test_tasks_survive_the_store(desk: HelpDesk) -> None:
    task, reference = desk.tasks(1, "test", Random(9))[0]
    again = load(Task, json.loads(json.dumps(dump(task))))
    assert again == task
    assert desk.verify(again, trajectory(*reference.actions)).success
    assert task.lineage is not None
    assert task.lineage.engine == "template"


def test_foreign_task_is_refused(desk: HelpDesk) -> None:
    with pytest.raises(EnvError, match="no help desk task"):
        desk.open(Task("x", "hello", "elsewhere", {}))


def test_it_is_a_world(desk: HelpDesk) -> None:
    world: World = desk
    assert len(world.tools) == 11

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from components.environments.help_desk import HelpDesk
from components.errors import ConfigError
from components.memory._cues import cue_of, leaks, telling_words
from components.memory.lessons import OR, Lessons
from components.plugins import make
from components.records import Message, Task, ToolCall, Trajectory, Turn

ESCALATE = {
    "type": "function",
    "function": {
        "name": "escalate",
        "parameters": {
            "type": "object",
            "properties": {"order": {"type": "string"}, "reason": {"enum": ["shipped", "late"]}},
        },
    },
}
LOOK = "get_order(order)"
LIMIT = re.compile(r"is under \d+|is \d+ or more")


def talk(
    id: str, asked: str, *steps: Any, executor: Any = "human", outcome: bool | None = False
) -> Trajectory:
    """A conversation: each step is (tool, arguments, result) or the reply's text."""
    observation = (Message("system", "policy"), Message("user", asked))
    turns: list[Turn] = []
    if executor == "human":
        turns.append(Turn(0, observation, Message("assistant", "Sure!"), "policy"))
    for step in steps:
        call = () if isinstance(step, str) else (ToolCall("c", step[0], json.dumps(step[1])),)
        action = Message("assistant", step if isinstance(step, str) else None, call)
        turns.append(Turn(len(turns), observation, action, executor))
        observation = () if isinstance(step, str) else (Message("tool", json.dumps(step[2])),)
    return Trajectory(id, "desk", tuple(turns), outcome=outcome, tools=(ESCALATE,))


def cancelled(number: int, asked: str = "Please cancel order {}.", **rest: Any) -> Trajectory:
    order = f"W{number}"
    return talk(
        f"c{number}",
        asked.format(order),
        ("get_order", {"order": order}, {"item": "Red Mug", "status": "packed"}),
        ("cancel_order", {"order": order}, {"done": True}),
        f"Order {order} is cancelled.",
        **rest,
    )


def refused(number: int, asked: str = "Please cancel order {}.", **rest: Any) -> Trajectory:
    order = f"W{number}"
    return talk(
        f"r{number}",
        asked.format(order),
        ("get_order", {"order": order}, {"item": "Red Mug", "status": "shipped"}),
        ("escalate", {"order": order, "reason": "shipped"}, {"done": True}),
        f"Sorry, we cannot cancel {order}.",
        **rest,
    )


CANCEL = f"{LOOK}, then cancel_order(order), then reply naming order"
REFUSE = f"{LOOK}, then escalate(order, reason=shipped), then reply naming order"


def test_correction_becomes_a_lesson() -> None:
    """The tool's listed choice `shipped` is shown, the order's number is not."""
    (entry,) = Lessons().write([refused(482)], [])
    assert (entry.kind, entry.version, entry.scope) == ("lesson", 1, "desk")
    assert entry.cue == "Please cancel <order>."
    assert entry.content == REFUSE
    assert entry.provenance == ("r482",)
    assert entry.lineage.engine == "rule"


def test_word_of_the_first_result_becomes_the_condition() -> None:
    """Two conversations each: `status` is packed in both of one kind and shipped in both of the other; `item` is equal."""
    corrected = [cancelled(1), cancelled(2), refused(3), refused(4)]
    (entry,) = Lessons().write(corrected, [])
    assert entry.content == f"{CANCEL} [if status is packed]\nOr: {REFUSE} [if status is shipped]"


def test_condition_needs_two_conversations_on_each_side() -> None:
    """One refusal is too few: the lesson ends where the two part, and prefers neither."""
    (entry,) = Lessons().write([cancelled(1), cancelled(2), refused(3)], [])
    assert entry.content == f"{LOOK}, then it depends"


def test_what_was_left_open_is_settled_when_a_condition_is_found() -> None:
    """One night cannot tell them apart; the next sees enough. Later, one side alone does not open it again."""
    (open_,) = Lessons().write([cancelled(1), refused(3)], [])
    assert open_.content == f"{LOOK}, then it depends"
    (settled,) = Lessons().write([cancelled(1), cancelled(2), refused(3), refused(4)], [open_])
    both = f"{CANCEL} [if status is packed]\nOr: {REFUSE} [if status is shipped]"
    assert (settled.id, settled.version, settled.content) == (open_.id, 2, both)
    (later,) = Lessons().write([cancelled(5)], [settled])
    assert later.content == both
    (still,) = Lessons().write([cancelled(5)], [open_])
    assert still.content == open_.content


def test_lessons_that_were_left_open_are_not_taken_for_the_same() -> None:
    """Both say `get_order(order), then it depends`; a further refund joins the refunds, not the cancellations."""
    open_ = Lessons().write(
        [cancelled(1), refused(3), refunded(5, 20, True), refunded(6, 180, False)], []
    )
    assert [entry.content for entry in open_] == [f"{LOOK}, then it depends"] * 2
    (changed,) = Lessons().write([refunded(7, 30, True)], open_)
    assert changed.id == next(entry.id for entry in open_ if "refund" in entry.cue)
    assert "ancel" not in changed.cue


def test_condition_that_tonight_refutes_is_withdrawn() -> None:
    (entry,) = Lessons().write([*LOW, *HIGH], [])
    (kept,) = Lessons().write([refunded(7, 99, True)], [entry])
    assert kept.content == entry.content
    (withdrawn,) = Lessons().write([refunded(8, 150, True)], [entry])
    assert withdrawn.content == f"{LOOK}, then it depends"


def test_old_limit_that_is_now_somebodys_number_is_withdrawn() -> None:
    (entry,) = Lessons().write([*LOW, *HIGH], [])
    (later,) = Lessons().write([refunded(7, 100, False)], [entry])
    assert "100" not in later.content
    assert "f7" in later.provenance


def swapped(number: int, stock: int) -> Trajectory:
    order = f"W{number}"
    act = ("swap", {"order": order}) if stock else ("escalate", {"order": order, "reason": "late"})
    return talk(
        f"s{number}",
        f"Please swap order {order}.",
        ("get_order", {"order": order}, {"price": number, "status": "delivered"}),
        ("get_product", {"item": "mug"}, {"stock": stock}),
        (*act, {"done": True}),
        f"About {order}: settled.",
    )


def test_condition_is_on_the_last_result_that_both_saw() -> None:
    """The stock from the second call decides; 1 and 2 lie between 0 and 2, 1 is nearer to their middle."""
    talks = [swapped(number, stock) for number, stock in ((11, 0), (40, 0), (12, 0))]
    talks += [swapped(number, stock) for number, stock in ((13, 2), (14, 33), (41, 7))]
    (entry,) = Lessons().write(talks, [])
    conditions = {
        text.split(", then ")[2]: text.partition(" [")[2] for text in entry.content.split(OR)
    }
    assert conditions == {
        "escalate(order, reason=late)": "if stock is under 1]",
        "swap(order)": "if stock is 1 or more]",
    }


def refunded(number: int, price: float, done: bool) -> Trajectory:
    order = f"W{number}"
    act = ("refund", {"order": order}) if done else ("escalate", {"order": order, "reason": "late"})
    return talk(
        f"f{number}",
        f"Please refund order {order}.",
        ("get_order", {"order": order}, {"price": price, "status": "delivered"}),
        (*act, {"done": True}),
        f"About {order}: settled.",
    )


LOW = [refunded(number, price, True) for number, price in ((1, 20), (2, 95), (3, 61))]
HIGH = [refunded(number, price, False) for number, price in ((4, 110), (5, 180), (6, 111))]


def test_number_between_two_procedures_becomes_the_condition() -> None:
    """Prices up to 95 were refunded, from 110 escalated: the roundest number between is 100. 2 / C(6, 3) = 0.1."""
    (entry,) = Lessons().write([*LOW, *HIGH], [])
    assert [text.partition(" [")[2] for text in sorted(entry.content.split(OR))] == [
        "if price is 100 or more]",  # escalate
        "if price is under 100]",  # refund
    ]
    assert Lessons().write([*HIGH, *LOW], []) == [entry]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ([20, 95], [110, 180, 111]),  # 2 / C(5, 2) = 0.2: five prices fall apart by chance
        ([20, 130, 61], [110, 180, 111]),  # no number divides them
        ([20, 21, 22], [22, 23, 24]),  # nothing lies between 22 and 22
    ],
)
def test_number_needs_a_gap_and_enough_conversations(low: list[int], high: list[int]) -> None:
    talks = [refunded(n, price, True) for n, price in enumerate(low, 1)]
    talks += [refunded(n, price, False) for n, price in enumerate(high, 11)]
    (entry,) = Lessons().write(talks, [])
    assert "[if" not in entry.content


def test_limit_is_nobodys_own_number() -> None:
    """100 would be shortest but is what somebody paid; of 96 to 99 the middle of 95 and 100 is nearest to 97 and 98."""
    for price in (100, 100.0):
        (entry,) = Lessons().write([*LOW, *HIGH, refunded(7, price, False)], [])
        assert "[if price is under 97]" in entry.content
        assert "100" not in entry.content


def test_success_of_the_agent_becomes_a_workflow() -> None:
    (entry,) = Lessons().write([cancelled(1, executor="policy", outcome=True)], [])
    assert entry.kind == "workflow"
    assert entry.content == CANCEL


@pytest.mark.parametrize("outcome", [False, None])
def test_failure_without_correction_teaches_nothing(outcome: bool | None) -> None:
    assert Lessons().write([cancelled(1, executor="policy", outcome=outcome)], []) == []
    assert Lessons().write([], []) == []


def test_wordings_of_one_request_are_one_entry() -> None:
    """{cancel, <order>} and {changed, mind, cancel, <order>} share 2 of 4 words: 0.5, one family."""
    (entry,) = Lessons().write(
        [cancelled(1), cancelled(2, "Hello. I changed my mind, cancel {}.")], []
    )
    assert entry.cue == "Please cancel <order>. | I changed my mind, cancel <order>."
    assert entry.provenance == ("c1", "c2")


def test_other_requests_are_other_entries() -> None:
    """{cancel, <order>} and {refund, <order>} share 1 of 3 words."""
    refund = talk("f1", "Please refund W9.", ("refund", {"order": "W9"}, {}), "Refunded W9.")
    assert len(Lessons().write([cancelled(1), refund], [])) == 2


def test_families_with_equal_procedures_become_one() -> None:
    """{stop, <order>, bought, mistake} shares 1 of 5 words with {cancel, <order>}, but the procedure is the same."""
    (entry,) = Lessons().write([cancelled(1), cancelled(2, "Stop {}, bought by mistake.")], [])
    assert entry.content == CANCEL
    assert len(entry.provenance) == 2


def test_known_family_gets_a_new_version() -> None:
    (first,) = Lessons().write([cancelled(1)], [])
    tried = replace(first, uses=4, successes=3)
    (second,) = Lessons().write([refused(2)], [tried])
    assert (second.id, second.version) == (first.id, 2)
    assert second.content == f"{LOOK}, then it depends"
    assert second.provenance == ("c1", "r2")
    assert (second.uses, second.successes) == (0, 0)


def test_more_evidence_for_the_same_content_keeps_its_record() -> None:
    (first,) = Lessons().write([cancelled(1)], [])
    (second,) = Lessons().write([cancelled(2)], [replace(first, uses=4, successes=3)])
    assert (second.content, second.uses, second.successes) == (first.content, 4, 3)
    assert second.provenance == ("c1", "c2")


def test_second_run_writes_nothing() -> None:
    corrected = [cancelled(1), refused(2), cancelled(3), refused(4)]
    bank = Lessons().write(corrected, [])
    assert Lessons().write(corrected, bank) == []
    assert Lessons().write(corrected[::-1], []) == bank


def test_newest_version_in_the_bank_counts() -> None:
    (first,) = Lessons().write([cancelled(1)], [])
    (second,) = Lessons().write([refused(2)], [first])
    (third,) = Lessons().write([refused(5)], [first, second])
    assert third.version == 3


def test_other_agents_entries_are_left_alone() -> None:
    (first,) = Lessons().write([cancelled(1)], [])
    other = replace(first, scope="other")
    (entry,) = Lessons().write([cancelled(1)], [other])
    assert entry.version == 1


def test_sources_are_bounded() -> None:
    lessons = Lessons(max_sources=2)
    bank = lessons.write([cancelled(n) for n in range(1, 4)], [])
    assert bank[0].provenance == ("c1", "c2")
    assert lessons.write([cancelled(9)], bank) == []


@pytest.mark.parametrize("asked", ["Hello!", "W1?", "Can you please?"])
def test_cue_that_says_nothing_is_junk(asked: str) -> None:
    assert Lessons().write([cancelled(1, asked)], []) == []


def test_unreadable_call_in_the_correction_is_not_learnt() -> None:
    good = cancelled(1)
    turn = good.turns[1]
    broken = replace(turn, action=Message("assistant", None, (ToolCall("c", "get_order", "{"),)))
    assert (
        Lessons().write([replace(good, turns=(good.turns[0], broken, *good.turns[2:]))], []) == []
    )


def test_repeated_calls_are_one_step_and_long_conversations_no_rule() -> None:
    looks = [("get_order", {"order": f"W{n}"}, {}) for n in range(10, 13)]
    (entry,) = Lessons().write([talk("l", "List my orders", *looks, "Done.")], [])
    assert entry.content == "get_order(order) for each, then reply"
    steps = [(f"step_{'abcdefghijk'[n]}", {"order": "W1"}, {}) for n in range(11)]
    assert len(Lessons().write([talk("l", "Deliver everything", *steps[:10], "Done.")], [])) == 1
    assert Lessons().write([talk("l", "Deliver everything", *steps, "Done.")], []) == []


def test_value_that_is_also_a_name_is_junk() -> None:
    """The customer's own words hold a value as part of the procedure's text: an argument valued `get_order`."""
    odd = talk("o", "Cancel the thing now", ("get_order", {"order": "get_order"}, {}), "Done.")
    assert Lessons().write([odd], []) == []


def test_cue_keeps_no_greeting_and_no_particulars() -> None:
    cue = cue_of(
        "Good morning. Please cancel order W1. My email is ann@x.org. Thanks!", {"W1": "order"}
    )
    assert cue == "Please cancel <order>."
    assert telling_words(cue) == {"cancel", "<order>"}


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="overlap"):
        make("memory", "lessons", {"overlap": 0.0})


def corrected(world: HelpDesk, task: Task) -> Trajectory:
    observation = (Message("system", "policy"), Message("user", task.instruction))
    turns = [Turn(0, observation, Message("assistant", "Sure!"), "policy")]
    for message in world.operator_solution(task):
        if message.role == "assistant":
            turns.append(Turn(len(turns), observation, message, "human"))
            observation = ()
        else:
            observation = (*observation, message)
    return Trajectory(task.id, "desk", tuple(turns), outcome=False, tools=world.tools)


def secrets(trajectories: Sequence[Trajectory]) -> set[str]:
    """Everything in calls and results that holds a digit or an at sign: order numbers, addresses, e-mails, amounts."""
    found: set[str] = set()
    for trajectory in trajectories:
        for message in trajectory.messages:
            texts = [call.arguments for call in message.tool_calls]
            texts += [message.text] if message.role in ("tool", "user") else []
            for text in texts:
                found |= set(re.findall(r"[\w@.-]*[\d@][\w@.-]*", text))
    return {value.strip(".-") for value in found}


def test_no_particulars_of_the_help_desk_leak() -> None:
    """200 corrected conversations: no number, order or e-mail of any appears in any entry.

    A limit (`[if price is under 100]`) may be the number of another request, but of none it was drawn from.
    """
    world = HelpDesk()
    trajectories = [corrected(world, task) for task, _ in world.tasks(200, "train", Random(3))]
    bank = Lessons().write(trajectories, [])
    assert len(bank) >= 8
    private = frozenset(secrets(trajectories))
    assert len(private) > 200
    assert not [e for e in bank if leaks(LIMIT.sub("", e.content) + e.cue, private)]
    sources = {trajectory.id: trajectory for trajectory in trajectories}
    limited = [entry for entry in bank if LIMIT.search(entry.content)]
    assert limited
    for entry in limited:
        assert not leaks(
            entry.content, frozenset(secrets([sources[id] for id in entry.provenance]))
        )
    streets = {t.params["said"].get("address", "") for t, _ in world.tasks(200, "train", Random(3))}
    words = frozenset(" ".join(street.split()[1:]) for street in streets) - {""}
    assert words
    assert not [e for e in bank if leaks(e.cue, words)]
    assert len(bank) <= 60

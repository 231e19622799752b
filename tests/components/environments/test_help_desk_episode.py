"""The rules of a step, with the shop written out by hand."""

import copy
import json
from typing import Any

import pytest

from components.environments._help_desk_episode import NOT_UNDERSTOOD, Episode
from components.errors import EnvError
from components.records import Message, ToolCall

ORDER = {
    "item": "red mug",
    "price": 24,
    "status": "packed",
    "days": 0,
    "day": "Friday",
    "late": 3,
    "address": "9 Elm Road",
}
SHOP: dict[str, Any] = {
    "customers": {"mia@post.net": ["W482", "W511"]},
    "orders": {
        "W482": ORDER,
        "W511": {**ORDER, "item": "blue lamp", "status": "delivered", "days": 31, "price": 120},
    },
    "products": {"red mug": {"price": 24, "stock": 0}, "blue lamp": {"price": 30, "stock": 4}},
    "refunds": {},
    "vouchers": {},
    "exchanges": {},
    "escalations": {},
}


def episode(max_turns: int = 20) -> Episode:
    return Episode(SHOP, "Please cancel W482.", max_turns)


def call(name: str, arguments: str | dict[str, Any]) -> Message:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message("assistant", tool_calls=(ToolCall("c1", name, text),))


def ask(desk: Episode, name: str, **arguments: Any) -> str:
    (answer,) = desk.step(call(name, arguments)).observation
    assert (answer.role, answer.tool_call_id, answer.name) == ("tool", "c1", name)
    return answer.text


def test_reads() -> None:
    desk = episode()
    assert (
        ask(desk, "find_customer", email="Mia@post.net") == '{"W482":"red mug","W511":"blue lamp"}'
    )
    assert (
        ask(desk, "get_order", order="#w482") == '{"item":"red mug","price":24,"status":"packed"}'
    )
    assert ask(desk, "get_order", order="W511").endswith('"status":"delivered","days":31}')
    assert ask(desk, "track_order", order="W482") == '{"day":"Friday","late":3}'
    assert ask(desk, "get_product", item="Red mug") == '{"price":24,"stock":0}'
    assert desk.shop.state == SHOP


def test_writes_change_the_shop_of_this_episode_alone() -> None:
    before = copy.deepcopy(SHOP)
    desk = episode()
    ask(desk, "get_order", order="W482")
    assert (
        ask(desk, "change_address", order="W482", address=" 1  Oak Street ")
        == '{"address":"1 Oak Street"}'
    )
    assert ask(desk, "send_voucher", order="W482", amount="3") == '{"voucher":3}'
    assert ask(desk, "refund_order", order="W482", amount=24) == '{"refund":24}'
    assert ask(desk, "cancel_order", order="W482") == '{"status":"cancelled"}'
    assert ask(desk, "escalate", order="W482", reason="amount") == '{"escalated":"amount"}'
    assert desk.shop.state["orders"]["W482"]["status"] == "cancelled"
    assert desk.shop.state["vouchers"] == {"W482": 3}
    assert desk.num_breaches == 0
    assert before == SHOP


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("cancel", {"order": "W482"}, "Error: no tool cancel"),
        ("get_order", {"order": "W999"}, "Error: no order W999"),
        ("get_order", {}, "Error: get_order takes order"),
        ("get_order", {"order": "W482", "why": "x"}, "Error: get_order takes order"),
        ("get_order", {"order": 482}, "Error: order is a text"),
        ("get_order", {"order": " "}, "Error: order is a text"),
        ("refund_order", {"order": "W482", "amount": "all"}, "Error: amount is a whole number"),
        ("refund_order", {"order": "W482", "amount": True}, "Error: amount is a whole number"),
        ("refund_order", {"order": "W482", "amount": 2.5}, "Error: amount is a whole number"),
        ("exchange_item", {"order": "W482", "item": "sofa"}, "Error: no item sofa"),
        ("find_customer", {"email": "x@y.z"}, "Error: no customer x@y.z"),
        ("escalate", {"order": "W482", "reason": "because"}, "Error: reason is one of"),
    ],
)
def test_what_cannot_be_done_is_an_error_and_changes_nothing(
    name: str, arguments: dict[str, Any], error: str
) -> None:
    desk = episode()
    before = desk.step(call("get_order", {"order": "W482"}))
    result = desk.step(call(name, arguments))
    assert result.observation[0].text.startswith(error)
    assert result.state_digest == before.state_digest
    assert result.facts == {"unparsable": None, "num_tool_errors": 1}
    assert result.feedback == ()
    assert not result.done


@pytest.mark.parametrize(
    ("order", "name", "arguments"),
    [
        ("W511", "cancel_order", {}),
        ("W511", "change_address", {"address": "1 Oak Street"}),
        ("W482", "return_order", {}),
        ("W511", "return_order", {}),
        ("W511", "exchange_item", {"item": "blue lamp"}),
        ("W511", "refund_order", {"amount": 120}),
        ("W482", "refund_order", {"amount": 23}),
        ("W482", "send_voucher", {"amount": 10}),
    ],
)
def test_breaches_are_done_and_reported(order: str, name: str, arguments: dict[str, Any]) -> None:
    """W482 is packed at 24, three days late; W511 came 31 days ago at 120."""
    desk = episode()
    before = desk.step(call("get_order", {"order": order}))
    result = desk.step(call(name, {"order": order, **arguments}))
    assert not result.observation[0].text.startswith("Error")
    assert [(each.source, each.kind, each.turn) for each in result.feedback] == [
        ("environment", "violation", 1)
    ]
    assert result.state_digest != before.state_digest


@pytest.mark.parametrize(
    "action",
    [
        Message("assistant", ""),
        Message("assistant", None),
        Message("assistant", "  \n"),
        Message("assistant", "Order W482 is", marks=("unparsable: cut off by the token limit",)),
        call("cancel_order", '{"order": "W48'),
        call("cancel_order", ""),
        call("cancel_order", '{"order": "W482"}{"order": "W511"}'),
    ],
)
def test_second_unparsable_action_ends_the_episode(action: Message) -> None:
    desk = episode()
    first = desk.step(action)
    assert not first.done
    assert first.facts is not None
    assert first.facts["unparsable"]
    if action.tool_calls:
        assert [m.role for m in first.observation] == ["tool"]
        assert first.observation[0].text.startswith("Error: ")
    else:
        assert first.observation == (Message("user", NOT_UNDERSTOOD),)
    assert not desk.step(call("get_order", {"order": "W482"})).done
    last = desk.step(action)
    assert (last.done, last.stop_reason, last.observation) == (True, "unparsable", ())
    assert desk.reply is None
    assert desk.shop.state == SHOP


def test_marked_calls_are_not_executed() -> None:
    action = call("cancel_order", {"order": "W482"})
    marked = Message("assistant", tool_calls=action.tool_calls, marks=("unparsable: cut off",))
    desk = episode()
    assert desk.step(marked).observation[0].text == "Error: cut off"
    assert desk.shop.state == SHOP


def test_good_calls_among_bad_ones_run() -> None:
    good, bad = ToolCall("g", "get_order", '{"order": "W482"}'), ToolCall("b", "get_order", "{")
    result = episode().step(Message("assistant", tool_calls=(bad, good)))
    assert [m.tool_call_id for m in result.observation] == ["b", "g"]
    assert result.observation[0].text.startswith("Error: invalid arguments")
    assert result.observation[1].text.startswith('{"item"')
    assert result.facts == {"unparsable": None, "num_tool_errors": 1}


def test_reply_ends_the_episode() -> None:
    desk = episode()
    result = desk.step(Message("assistant", "Bye."))
    assert (result.done, result.stop_reason, result.observation) == (True, "done", ())
    assert desk.reply == "Bye."
    with pytest.raises(EnvError, match="over after 1 actions"):
        desk.step(Message("assistant", "And another thing."))


def test_turn_limit_ends_the_episode() -> None:
    desk = episode(max_turns=2)
    assert not desk.step(call("get_order", {"order": "W482"})).done
    result = desk.step(call("get_order", {"order": "W482"}))
    assert (result.done, result.stop_reason, result.observation) == (True, "max_turns", ())


def test_text_beside_a_call_is_not_the_reply() -> None:
    desk = episode()
    spoken = Message(
        "assistant", "Let me look.", tool_calls=(ToolCall("c", "get_order", '{"order": "W482"}'),)
    )
    assert not desk.step(spoken).done
    assert desk.reply is None

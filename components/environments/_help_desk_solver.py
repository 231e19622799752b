"""A clerk who knows the policy: solves a request from what the customer said and what the tools show.

It reads `params["kind"]` for the wish alone and never the goal: whether the wish is granted is decided from the looked-up
record, so the clerk and the verifier check each other.
"""

import json
from collections.abc import Callable, Generator
from typing import Any

from components.environments._help_desk_episode import Episode
from components.environments._help_desk_shop import MAX_REFUND, MAX_RETURN_DAYS
from components.environments._help_desk_tasks import KINDS
from components.errors import EnvError
from components.records import Message, ToolCall

Call = tuple[str, dict[str, Any]]
Script = Generator[Call, dict[str, Any], str]
"""Yields calls, is sent what they return, returns the reply."""


def solve(kind: str, said: dict[str, str], episode: Episode) -> list[Message]:
    """The conversation after the customer's words: calls, results, the reply, all executed in the episode."""
    script = _clerk(KINDS[kind].wish, said)
    conversation: list[Message] = []
    try:
        wanted = next(script)
        while True:
            call = ToolCall(f"call_{len(conversation) // 2 + 1}", wanted[0], json.dumps(wanted[1]))
            action = Message("assistant", tool_calls=(call,))
            (answer,) = episode.step(action).observation
            conversation += [action, answer]
            if answer.text.startswith("Error:"):
                raise EnvError(
                    f"the clerk's call {call.name} {call.arguments} failed: {answer.text}"
                )
            wanted = script.send(json.loads(answer.text))
    except StopIteration as finished:
        reply = Message("assistant", finished.value)
    episode.step(reply)
    return [*conversation, reply]


def _clerk(wish: str, said: dict[str, str]) -> Script:
    if wish in ("price", "stock"):
        seen = yield "get_product", {"item": said["item"]}
        return _PRODUCT_REPLIES[wish].format(item=said["item"], **seen)
    order = said.get("order")
    if order is None:
        found = yield "find_customer", {"email": said["email"]}
        order = next(number for number, item in found.items() if item == said["ordered"])
    return (yield from _SCRIPTS[wish](order, said))


_PRODUCT_REPLIES = {
    "price": "The {item} costs {price}.",
    "stock": "We have {stock} of the {item}.",
}


def _refuse(order: str, reason: str, what: str) -> Script:
    yield "escalate", {"order": order, "reason": reason}
    return f"Sorry, we cannot {what} order {order}."


def _status(order: str, said: dict[str, str]) -> Script:
    seen = yield "get_order", {"order": order}
    return f"Order {order} is {seen['status']}."


def _delivery(order: str, said: dict[str, str]) -> Script:
    seen = yield "track_order", {"order": order}
    return f"Order {order} arrives on {seen['day']}."


def _cancel(order: str, said: dict[str, str]) -> Script:
    seen = yield "get_order", {"order": order}
    if seen["status"] != "packed":
        return (yield from _refuse(order, "shipped", "cancel"))
    yield "cancel_order", {"order": order}
    return f"Order {order} is cancelled."


def _address(order: str, said: dict[str, str]) -> Script:
    seen = yield "get_order", {"order": order}
    if seen["status"] != "packed":
        return (yield from _refuse(order, "shipped", "readdress"))
    yield "change_address", {"order": order, "address": said["address"]}
    return f"Order {order} goes to {said['address']}."


def _return(order: str, said: dict[str, str]) -> Script:
    seen = yield "get_order", {"order": order}
    if seen["days"] > MAX_RETURN_DAYS:
        return (yield from _refuse(order, "expired", "take back"))
    yield "return_order", {"order": order}
    return f"The return of order {order} is started."


def _exchange(order: str, said: dict[str, str]) -> Script:
    seen = yield "get_order", {"order": order}
    if seen["days"] > MAX_RETURN_DAYS:
        return (yield from _refuse(order, "expired", "exchange"))
    product = yield "get_product", {"item": said["item"]}
    if product["stock"] < 1:
        return (yield from _refuse(order, "sold_out", "exchange"))
    yield "exchange_item", {"order": order, "item": said["item"]}
    return f"Order {order} is exchanged for the {said['item']}."


def _refund(order: str, said: dict[str, str]) -> Script:
    seen = yield "get_order", {"order": order}
    if seen["price"] > MAX_REFUND:
        return (yield from _refuse(order, "amount", "refund"))
    yield "refund_order", {"order": order, "amount": seen["price"]}
    return f"We refund {seen['price']} for order {order}."


def _voucher(order: str, said: dict[str, str]) -> Script:
    seen = yield "track_order", {"order": order}
    if seen["late"] < 1:
        return (yield from _refuse(order, "on_time", "send a voucher for"))
    yield "send_voucher", {"order": order, "amount": seen["late"]}
    return f"A voucher of {seen['late']} for order {order} is sent."


_SCRIPTS: dict[str, Callable[[str, dict[str, str]], Script]] = {
    "status": _status,
    "delivery": _delivery,
    "cancel": _cancel,
    "address": _address,
    "return": _return,
    "exchange": _exchange,
    "refund": _refund,
    "voucher": _voucher,
}

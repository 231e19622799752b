"""The shop behind the help desk: its state, its policy in words, its tools.

State, as one JSON object (this is also what a task carries as `params["shop"]`):

    {"customers": {"mia@post.net": ["W482"]},
     "orders": {"W482": {"item": "red mug", "price": 24, "status": "packed", "days": 0, "day": "Friday", "late": 0,
                         "address": "9 Elm Road"}},
     "products": {"red mug": {"price": 24, "stock": 3}},
     "refunds": {}, "vouchers": {}, "exchanges": {}, "escalations": {}}

`days` counts from delivery, `late` counts days past the promised day, `day` is when the parcel comes.
Tools do what they are told, also against the policy; a breach is reported beside the result. What cannot be done (an
unknown order, a missing argument) is a text that starts with `Error:` and changes nothing.
"""

import copy
import json
from collections.abc import Callable
from typing import Any, NamedTuple

Scene = dict[str, Any]

POLICY = (
    "Help desk of Kite Shop. Look up an order before you change it. Cancel or readdress only if packed. Return or "
    "exchange within 30 days, exchange only if in stock. Refund broken items at their price, up to 100. Vouchers: 1 "
    "per day late. Else escalate with a reason (shipped, expired, sold_out, amount, on_time) and say we cannot. Call "
    "a tool, or reply in one sentence naming the order."
)
MAX_RETURN_DAYS = 30
MAX_REFUND = 100
REASONS = ("shipped", "expired", "sold_out", "amount", "on_time")

_SIGNATURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "find_customer": ("Orders of a customer.", ("email",)),
    "get_order": ("What was ordered, its price and status.", ("order",)),
    "track_order": ("Arrival day and days late.", ("order",)),
    "get_product": ("Price and stock.", ("item",)),
    "cancel_order": ("Cancel an order.", ("order",)),
    "change_address": ("Send an order elsewhere.", ("order", "address")),
    "return_order": ("Start a return.", ("order",)),
    "exchange_item": ("Exchange the ordered item for another.", ("order", "item")),
    "refund_order": ("Pay money back.", ("order", "amount")),
    "send_voucher": ("Send a voucher for an order.", ("order", "amount")),
    "escalate": ("Hand over to a person.", ("order", "reason")),
}
READ_TOOLS = frozenset({"find_customer", "get_order", "track_order", "get_product"})
ARGUMENTS = {name: arguments for name, (_, arguments) in _SIGNATURES.items()}


def _definition(name: str) -> dict[str, Any]:
    description, arguments = _SIGNATURES[name]
    properties: dict[str, Any] = {
        argument: {"type": "integer" if argument == "amount" else "string"}
        for argument in arguments
    }
    if name == "escalate":
        properties["reason"]["enum"] = list(REASONS)
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS: tuple[dict[str, Any], ...] = tuple(_definition(name) for name in _SIGNATURES)


class CallResult(NamedTuple):
    text: str
    """What the agent sees."""
    failed: bool
    """The call could not be done and changed nothing."""
    breach: str | None
    """Which rule of the policy the call broke, or None."""


class _CannotDo(Exception):
    """A tool refuses; the message is for the agent."""


class Shop:
    """One shop, changed by tool calls."""

    def __init__(self, scene: Scene) -> None:
        self.state: Scene = copy.deepcopy(scene)
        self._looked_up: set[str] = set()
        self._breach: str | None = None

    def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Execute one tool call."""
        self._breach = None
        try:
            checked = self._check(name, arguments)
            shown = _TOOL_CODE[name](self, **checked)
        except _CannotDo as refusal:
            return CallResult(f"Error: {refusal}", True, None)
        return CallResult(json.dumps(shown, separators=(",", ":")), False, self._breach)

    def _check(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        wanted = ARGUMENTS.get(name)
        if wanted is None:
            raise _CannotDo(f"no tool {name}")
        if set(arguments) != set(wanted):
            raise _CannotDo(f"{name} takes {', '.join(wanted)}")
        return {key: _amount(value) if key == "amount" else _text(key, value)
                for key, value in arguments.items()}  # fmt: skip

    def _order(self, order: str) -> tuple[str, dict[str, Any]]:
        number = order.lstrip("#").upper()
        if number not in self.state["orders"]:
            raise _CannotDo(f"no order {order}")
        return number, self.state["orders"][number]

    def _order_to_change(self, order: str) -> tuple[str, dict[str, Any]]:
        number, row = self._order(order)
        self._forbid(number not in self._looked_up, f"order {number} was not looked up first")
        return number, row

    def _product(self, item: str) -> tuple[str, dict[str, Any]]:
        name = item.lower()
        if name not in self.state["products"]:
            raise _CannotDo(f"no item {item}")
        return name, self.state["products"][name]

    def _forbid(self, broken: bool, rule: str) -> None:
        if broken and self._breach is None:
            self._breach = rule

    def _forbid_unless_returnable(self, number: str, row: dict[str, Any]) -> None:
        self._forbid(row["status"] != "delivered", f"order {number} is not delivered")
        self._forbid(row["days"] > MAX_RETURN_DAYS, f"order {number} came {row['days']} days ago")

    # --- tools that read

    def find_customer(self, email: str) -> dict[str, Any]:
        numbers = self.state["customers"].get(email.lower())
        if numbers is None:
            raise _CannotDo(f"no customer {email}")
        return {number: self.state["orders"][number]["item"] for number in numbers}

    def get_order(self, order: str) -> dict[str, Any]:
        number, row = self._order(order)
        self._looked_up.add(number)
        shown = {"item": row["item"], "price": row["price"], "status": row["status"]}
        return {**shown, "days": row["days"]} if row["status"] == "delivered" else shown

    def track_order(self, order: str) -> dict[str, Any]:
        number, row = self._order(order)
        self._looked_up.add(number)
        return {"day": row["day"], "late": row["late"]}

    def get_product(self, item: str) -> dict[str, Any]:
        _, row = self._product(item)
        return {"price": row["price"], "stock": row["stock"]}

    # --- tools that write

    def cancel_order(self, order: str) -> dict[str, Any]:
        number, row = self._order_to_change(order)
        self._forbid(row["status"] != "packed", f"order {number} is {row['status']}, not packed")
        row["status"] = "cancelled"
        return {"status": "cancelled"}

    def change_address(self, order: str, address: str) -> dict[str, Any]:
        number, row = self._order_to_change(order)
        self._forbid(row["status"] != "packed", f"order {number} is {row['status']}, not packed")
        row["address"] = address
        return {"address": address}

    def return_order(self, order: str) -> dict[str, Any]:
        number, row = self._order_to_change(order)
        self._forbid_unless_returnable(number, row)
        row["status"] = "return"
        return {"status": "return"}

    def exchange_item(self, order: str, item: str) -> dict[str, Any]:
        number, row = self._order_to_change(order)
        name, product = self._product(item)
        self._forbid_unless_returnable(number, row)
        self._forbid(product["stock"] < 1, f"{name} is sold out")
        self.state["exchanges"][number] = name
        return {"exchange": name}

    def refund_order(self, order: str, amount: int) -> dict[str, Any]:
        number, row = self._order_to_change(order)
        self._forbid(amount > MAX_REFUND, f"{amount} is more than {MAX_REFUND}")
        self._forbid(amount != row["price"], f"the price of order {number} is {row['price']}")
        self.state["refunds"][number] = self.state["refunds"].get(number, 0) + amount
        return {"refund": amount}

    def send_voucher(self, order: str, amount: int) -> dict[str, Any]:
        number, row = self._order_to_change(order)
        self._forbid(amount != row["late"], f"order {number} is {row['late']} days late")
        self.state["vouchers"][number] = self.state["vouchers"].get(number, 0) + amount
        return {"voucher": amount}

    def escalate(self, order: str, reason: str) -> dict[str, Any]:
        number, _ = self._order_to_change(order)
        if reason not in REASONS:
            raise _CannotDo(f"reason is one of {', '.join(REASONS)}")
        self.state["escalations"][number] = reason
        return {"escalated": reason}


_TOOL_CODE: dict[str, Callable[..., dict[str, Any]]] = {
    name: vars(Shop)[name] for name in _SIGNATURES
}


def _amount(value: Any) -> int:
    """A whole number, also when written as text."""
    if isinstance(value, str) and value.strip().isdecimal() and value.isascii():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _CannotDo("amount is a whole number")


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _CannotDo(f"{key} is a text")
    return " ".join(value.split())

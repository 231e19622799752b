"""Requests to the help desk, drawn from a seed: the shop around one wish, and what must be true at the end.

A wish is one thing a customer may want; a kind is a wish with its lawful end, so `cancel` becomes `cancel` (the order
is still packed) or `cancel_refused` (it is shipped; the agent must escalate and say no). The split is a function of the
request's content (kind, order number or product and figure): two splits never hold the same request in other words.

Goal, read by the verifier alone:

    {"state": {"orders": {"W482": {"status": "cancelled"}}},   merged over the opening state
     "facts": [["w482"], ["cancelled", "canceled"]],           of each list one must stand in the reply
     "excludes": ["cannot", ...],                              none of these may
     "shown": [["W482", "Friday"]]}                            one call must have shown these together
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, NamedTuple

from components.environments import _help_desk_words as words
from components.environments._help_desk_shop import Scene
from components.serial import digest

Split = Literal["train", "dev", "test"]
Group = Literal["read", "write", "refused"]
STATUSES = ("packed", "shipped", "delivered")
REFUSALS = ("cannot", "can't", "can not", "unable", "not possible")
SPLIT_OF_BUCKET: dict[int, Split] = {
    bucket: "train" if bucket < 12 else "dev" if bucket < 15 else "test" for bucket in range(20)
}


class Kind(NamedTuple):
    wish: str
    group: Group
    tools: tuple[str, ...]
    """Tools its solution calls, in order, once the order's number is known."""


KINDS: dict[str, Kind] = {
    "status": Kind("status", "read", ("get_order",)),
    "delivery": Kind("delivery", "read", ("track_order",)),
    "price": Kind("price", "read", ("get_product",)),
    "stock": Kind("stock", "read", ("get_product",)),
    "cancel": Kind("cancel", "write", ("get_order", "cancel_order")),
    "address": Kind("address", "write", ("get_order", "change_address")),
    "return": Kind("return", "write", ("get_order", "return_order")),
    "exchange": Kind("exchange", "write", ("get_order", "get_product", "exchange_item")),
    "refund": Kind("refund", "write", ("get_order", "refund_order")),
    "voucher": Kind("voucher", "write", ("track_order", "send_voucher")),
    "cancel_refused": Kind("cancel", "refused", ("get_order", "escalate")),
    "address_refused": Kind("address", "refused", ("get_order", "escalate")),
    "return_refused": Kind("return", "refused", ("get_order", "escalate")),
    "exchange_refused": Kind("exchange", "refused", ("get_order", "get_product", "escalate")),
    "refund_refused": Kind("refund", "refused", ("get_order", "escalate")),
    "voucher_refused": Kind("voucher", "refused", ("track_order", "escalate")),
}
PRODUCT_WISHES = ("price", "stock")
REASON_OF = {
    "cancel": "shipped",
    "address": "shipped",
    "return": "expired",
    "exchange": "sold_out",
    "refund": "amount",
    "voucher": "on_time",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind, and how the customer names the order."""

    kind: str
    by_email: bool

    @property
    def skills(self) -> tuple[str, ...]:
        found = ("find_customer",) if self.by_email else ()
        return (self.kind, *found, *KINDS[self.kind].tools)


@dataclass(frozen=True, slots=True)
class Request:
    """One drawn request: what is said, the shop, and the goal."""

    variant: Variant
    instruction: str
    params: dict[str, Any]


def split_of(request_key: tuple[Any, ...]) -> Split:
    """The split that this content belongs to."""
    return SPLIT_OF_BUCKET[int(digest(list(request_key))[:8], 16) % len(SPLIT_OF_BUCKET)]


def draw(variant: Variant, split: Split, new_wording: bool, rng: Random) -> Request:
    """A request of this variant whose content belongs to the split."""
    for shop, said in _scenes(variant, rng):
        key = (variant.kind, said.get("order") or [said["item"], shop["products"][said["item"]]])
        if split_of(key) == split:
            break
    params = {
        "kind": variant.kind,
        "wording": "new" if new_wording else "known",
        "said": said if not variant.by_email else _by_email(said, shop),
        "shop": shop,
        "goal": _goal(variant.kind, said, shop),
    }
    return Request(variant, _instruction(params, new_wording, rng), params)


def _by_email(said: dict[str, str], shop: Scene) -> dict[str, str]:
    """The same words with the customer's e-mail and the thing bought in place of the order's number."""
    email = next(email for email, numbers in shop["customers"].items() if said["order"] in numbers)
    rest = {key: value for key, value in said.items() if key != "order"}
    return {**rest, "email": email, "ordered": shop["orders"][said["order"]]["item"]}


def _scenes(variant: Variant, rng: Random) -> Iterator[tuple[Scene, dict[str, str]]]:
    """Shops that fit the kind, each with the facts that the customer knows."""
    wish = KINDS[variant.kind].wish
    refused = KINDS[variant.kind].group == "refused"
    while True:
        items = [f"{colour} {thing}" for colour, thing in _pairs(rng)]
        emails = [f"{name}@{rng.choice(words.DOMAINS)}" for name in rng.sample(words.NAMES, 2)]
        numbers = [f"W{number}" for number in rng.sample(range(100, 1000), 3)]
        products = {item: _product(rng) for item in items}
        orders = {
            number: _order(item, rng) for number, item in zip(numbers, items[:3], strict=True)
        }
        _fit(wish, refused, orders[numbers[0]], products[items[3]], rng)
        shop: Scene = {
            "customers": {emails[0]: sorted(numbers[:2]), emails[1]: numbers[2:]},
            "orders": orders,
            "products": products,
            **{table: {} for table in ("refunds", "vouchers", "exchanges", "escalations")},
        }
        said = {} if wish in PRODUCT_WISHES else {"order": numbers[0]}
        if wish in (*PRODUCT_WISHES, "exchange"):
            said["item"] = items[3]
        if wish == "address":
            said["address"] = _address(rng)
        yield shop, said


def _pairs(rng: Random) -> list[tuple[str, str]]:
    """Four products of four different sorts."""
    return [(rng.choice(words.COLOURS), thing) for thing in rng.sample(words.THINGS, 4)]


def _product(rng: Random) -> dict[str, int]:
    return {"price": rng.randint(41, 99), "stock": rng.randint(2, 40)}


def _address(rng: Random) -> str:
    return f"{rng.randint(1, 99)} {rng.choice(words.STREETS)}"


def _order(item: str, rng: Random) -> dict[str, Any]:
    status = rng.choice(STATUSES)
    return {
        "item": item,
        "price": rng.randint(12, 95),
        "status": status,
        "days": rng.randint(2, 25) if status == "delivered" else 0,
        "day": rng.choice(words.DAYS),
        "late": rng.choice((0, 0, rng.randint(2, 9))),
        "address": _address(rng),
    }


def _fit(
    wish: str, refused: bool, order: dict[str, Any], product: dict[str, int], rng: Random
) -> None:
    """Make the order and the wanted product such that the policy grants the wish, or refuses it."""
    if wish == "delivery":
        order.update(status=rng.choice(("packed", "shipped")), days=0)
    elif wish in ("cancel", "address"):
        order.update(status="shipped" if refused else "packed", days=0)
    elif wish in ("return", "exchange", "refund"):
        expired = wish == "return" and refused
        order.update(
            status="delivered", days=rng.randint(35, 80) if expired else rng.randint(2, 25)
        )
    elif wish == "voucher":
        order.update(status="shipped", days=0, late=0 if refused else rng.randint(2, 9))
    if wish == "exchange" and refused:
        product["stock"] = 0
    if wish == "refund" and refused:
        order["price"] = rng.randint(110, 190)


def _goal(kind: str, said: dict[str, str], shop: Scene) -> dict[str, Any]:
    wish, group, _ = KINDS[kind]
    if group == "refused":
        number = said["order"]
        state = {"escalations": {number: REASON_OF[wish]}}
        return {"state": state, "facts": [[number], list(REFUSALS)], "excludes": [], "shown": []}
    if wish in PRODUCT_WISHES:
        figure = str(shop["products"][said["item"]][wish])
        shown = [[said["item"], figure]]
        return {"state": {}, "facts": [[said["item"]], [figure]], "excludes": [], "shown": shown}
    number = said["order"]
    order = shop["orders"][number]
    if group == "read":
        answer, slot = (
            (order["status"], STATUSES) if wish == "status" else (order["day"], words.DAYS)
        )
        return {
            "state": {},
            "facts": [[number], [answer]],
            "excludes": [other for other in slot if other != answer],
            "shown": [[number, answer]],
        }
    state, told = _write_goal(wish, number, order, said)
    return {
        "state": state,
        "facts": [[number], told],
        "excludes": list(REFUSALS),
        "shown": [],
    }


def _write_goal(
    wish: str, number: str, order: dict[str, Any], said: dict[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """What changes in the shop, and the words one of which tells the customer so."""
    match wish:
        case "cancel":
            changed = {"orders": {number: {"status": "cancelled"}}}
            return changed, ["cancelled", "canceled"]
        case "address":
            return {"orders": {number: {"address": said["address"]}}}, [said["address"]]
        case "return":
            changed = {"orders": {number: {"status": "return"}}}
            return changed, ["return", "returned", "returning"]
        case "exchange":
            return {"exchanges": {number: said["item"]}}, [said["item"]]
        case "refund":
            return {"refunds": {number: order["price"]}}, [str(order["price"])]
        case _:
            return {"vouchers": {number: order["late"]}}, [str(order["late"])]


def _instruction(params: dict[str, Any], new_wording: bool, rng: Random) -> str:
    """The customer's words."""
    said = params["said"]
    pool = words.NEW if new_wording else words.KNOWN
    openers = words.NEW_OPENERS if new_wording else words.KNOWN_OPENERS
    closers = words.NEW_CLOSERS if new_wording else words.KNOWN_CLOSERS
    sentence = rng.choice(pool[KINDS[params["kind"]].wish])
    if "email" in said:
        it = words.BY_EMAIL.format(item=said["ordered"])
        after = rng.choice(words.EMAIL_SENTENCES).format(email=said["email"])
    else:
        it, after = rng.choice(words.BY_NUMBER).format(order=said.get("order", "")), ""
    wish = sentence.format(it=it, item=said.get("item", ""), address=said.get("address", ""))
    return f"{rng.choice(openers)}{wish[0].upper()}{wish[1:]}{after}{rng.choice(closers)}"

"""Plausible help-desk conversations for the seeded store: what an agent did, and how an operator put it right.

conversation(3, "2026-03-01", Kind("refund", ...), wrong=True)  -> Trajectory with policy turns, then human turns
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from components.records import (
    Evidence,
    Executor,
    FailureCase,
    Fault,
    Feedback,
    Lineage,
    Message,
    SourceRef,
    ToolCall,
    Trajectory,
    Turn,
    Usage,
)
from components.serial import digest

AGENT = "help-desk"
POLICY = (
    "You are the help desk of a small shop. Look a record up before you change it. Refund only delivered orders; "
    "cancel only orders that are not shipped. Reply with the order id and what you did."
)
NAMES = ("Mara", "Ivo", "Noor", "Tess", "Jan", "Lucía", "Émile", "Yuki", "Olu", "Pia")
STREETS = ("Lindenstraat 4", "Quay 18", "Rue des Lilas 7", "Hill Road 22", "Kastanienallee 9")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request, and the way the agent gets it wrong."""

    name: str
    ask: str
    tool: str
    reply: str
    wrong_tool: str
    signature: str
    mode: str
    summary: str
    fault: Fault = "model"


KINDS = (
    Kind(
        "refund",
        "Hi, {name} here. Order {order} arrived broken, I would like my money back please.",
        "refund_order",
        "I refunded order {order}; the money is on its way.",
        "cancel_order",
        "wrong_tool|refund_order|issued cancel_order",
        "Cancels where a refund was asked for",
        "Issued cancel_order on a delivered order; the customer asked for a refund.",
    ),
    Kind(
        "address",
        "Could you send order {order} to {street} instead? Thanks, {name}",
        "change_address",
        "Order {order} now goes to {street}.",
        "change_address",
        "wrong_argument|change_address|street",
        "Copies the address wrongly",
        "Called change_address with a street that the customer did not give.",
    ),
    Kind(
        "track",
        "Where is my order {order}? It was promised for Tuesday. {name}",
        "track_order",
        "Order {order} is with the carrier and arrives on Thursday.",
        "",
        "unparsable_action|track_order|prose up to the token limit",
        "Answers in prose and never calls a tool",
        "Wrote prose up to the token limit; track_order was wanted.",
    ),
    Kind(
        "cancel",
        "Please cancel order {order}, I ordered it twice by mistake. – {name}",
        "cancel_order",
        "Order {order} is cancelled.",
        "cancel_order",
        "missing_step|get_order|cancel_order came first",
        "Changes an order without looking it up",
        "Called cancel_order before get_order; the order was already shipped.",
    ),
    Kind(
        "voucher",
        "My parcel {order} came a week late. Is there something you can do for me? {name}",
        "send_voucher",
        "A voucher for the late order {order} is in your mailbox.",
        "send_voucher",
        "wrong_reply|send_voucher|order id missing",
        "Reply leaves out the order id",
        "The final reply does not name the order, as the policy asks.",
    ),
    Kind(
        "return",
        "The shoes from order {order} do not fit, how do I send them back? {name}",
        "return_order",
        "A return label for order {order} is in your mailbox.",
        "return_order",
        "tool_error|return_order|HTTP 503",
        "The returns service does not answer",
        "return_order failed with HTTP 503 three times in a row.",
        "environment",
    ),
)
_START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)


def lineage(plugin: str, parents: tuple[str, ...] = ()) -> Lineage:
    return Lineage(parents, plugin, digest(plugin)[:12], "rule", digest({})[:16])


def conversation(index: int, night: str, kind: Kind, wrong: bool, rng: Random) -> Trajectory:
    """One customer: look up, act, reply; wrong conversations end with the operator's correction."""
    words = {
        "name": rng.choice(NAMES),
        "order": f"W{rng.randrange(100, 999)}",
        "street": rng.choice(STREETS),
    }
    customer = Message("user", kind.ask.format(**words))
    opening = (Message("system", POLICY), customer)
    good = _solution(kind, words, opening, "human" if wrong else "policy")
    turns = (*_mistake(kind, words, opening), *good) if wrong else good
    turns = tuple(_numbered(position, turn, rng) for position, turn in enumerate(turns))
    started = _START + timedelta(days=int(night[-2:]) - 1, minutes=7 * index)
    return Trajectory(
        id=f"t-{digest([night, index])[:10]}",
        agent=AGENT,
        turns=turns,
        task_id=f"task-{kind.name}-{digest(words)[:8]}",
        conversation_id=f"conv-{night}-{index:03d}",
        feedback=_feedback(kind, turns, wrong, started),
        outcome=not wrong,
        outcome_source="user",
        stop_reason="takeover" if wrong else "done",
        policy="SmolLM2-135M-Instruct/v0",
        memory_revision="1",
        source=SourceRef(
            "openai_chat", f"logs/{AGENT}/{night}.jsonl", 900 * index, 900 * index + 880
        ),
        started_at=started,
    )


def case_of(trajectory: Trajectory, kind: Kind, mode_id: str) -> FailureCase:
    wrong = 0 if kind.name in ("track", "cancel") else 1
    action = trajectory.turns[wrong].action
    quote = action.tool_calls[0].arguments if action.tool_calls else action.text[:70]
    return FailureCase(
        id=f"c-{digest(trajectory.id)[:10]}",
        trajectory_id=trajectory.id,
        turn=wrong,
        fault=kind.fault,
        signature=kind.signature,
        summary=kind.summary,
        evidence=(Evidence(wrong, quote),),
        lineage=lineage("mining/rules", (trajectory.id,)),
        mode_id=mode_id,
    )


def _call(name: str, arguments: dict[str, str]) -> Message:
    call_id = f"call_{digest([name, arguments])[:6]}"
    return Message("assistant", None, (ToolCall(call_id, name, json.dumps(arguments)),))


def _result(call: Message, body: dict[str, object] | str) -> Message:
    text = body if isinstance(body, str) else json.dumps(body)
    return Message("tool", text, tool_call_id=call.tool_calls[0].id)


def _arguments(kind: Kind, words: dict[str, str]) -> dict[str, str]:
    base = {"order_id": words["order"]}
    return {**base, "street": words["street"]} if kind.name == "address" else base


def _solution(
    kind: Kind, words: dict[str, str], opening: tuple[Message, ...], executor: Executor
) -> tuple[Turn, ...]:
    look = _call("get_order", {"order_id": words["order"]})
    act = _call(kind.tool, _arguments(kind, words))
    record = {"id": words["order"], "status": "delivered", "items": 2, "total": "49.90"}
    return (
        Turn(0, opening, look, executor),
        Turn(1, (_result(look, record),), act, executor),
        Turn(
            2,
            (_result(act, {"ok": True}),),
            Message("assistant", kind.reply.format(**words)),
            executor,
        ),
    )


def _mistake(kind: Kind, words: dict[str, str], opening: tuple[Message, ...]) -> tuple[Turn, ...]:
    if kind.name == "track":
        prose = "Thank you for reaching out! I understand that waiting is frustrating. " * 6
        return (Turn(0, opening, Message("assistant", prose), finish_reason="length"),)
    look = _call("get_order", {"order_id": words["order"]})
    arguments = _arguments(kind, words)
    if kind.name == "address":
        arguments["street"] = "Main Street 1"
    act = _call(kind.wrong_tool, arguments)
    if kind.name == "cancel":
        return (
            Turn(0, opening, act),
            Turn(
                1, (_result(act, "Error: order is already shipped"),), Message("assistant", "Done!")
            ),
        )
    answer = "Error: HTTP 503" if kind.name == "return" else {"ok": True}
    return (
        Turn(0, opening, look),
        Turn(
            1,
            (_result(look, {"id": words["order"], "status": "delivered", "total": "49.90"}),),
            act,
        ),
        Turn(2, (_result(act, answer),), Message("assistant", "All done, have a nice day!")),
    )


def _numbered(position: int, turn: Turn, rng: Random) -> Turn:
    usage = Usage(180 + 40 * position + rng.randrange(30), None, 14 + rng.randrange(20))
    by_policy = turn.executor == "policy"
    return Turn(
        position,
        turn.observation,
        turn.action,
        turn.executor,
        usage=usage if by_policy else None,
        finish_reason=turn.finish_reason or ("stop" if by_policy else None),
        latency_s=round(0.3 + rng.random(), 2) if by_policy else None,
    )


def _feedback(
    kind: Kind, turns: tuple[Turn, ...], wrong: bool, started: datetime
) -> tuple[Feedback, ...]:
    later = started + timedelta(minutes=3)
    if not wrong:
        return (
            Feedback("user", "outcome", 1.0, text="Thanks, that was quick!", occurred_at=later),
        )
    first = turns[0].action
    before = first.tool_calls[0].arguments if first.tool_calls else first.text[:60]
    edit = Feedback(
        "user",
        "edit",
        turn=0,
        before=before,
        after="[corrected continuation]",
        actor="operator",
        occurred_at=later,
    )
    said = Feedback("user", "outcome", 0.0, text=f"This is not what I asked for ({kind.name}).")
    return (edit, said)

"""A day's customer: what goes over the wire, and what feedback is left behind."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from components.environments.help_desk import HelpDesk
from components.errors import ModelCallError
from components.harnesses.customers import Served, StaffedWorld, Visit, action_text, serve_customer
from components.llm import ChatReply, read_message
from components.records import Message, Task, ToolCall, Usage
from tests.fakes_world import BoxWorld

VISIT = Visit("day-1-7", agent="desk", max_tokens=48, temperature=0.0, memory="Lessons:\n- Look.")
TASK = BoxWorld().tasks(1, "train", Random(2))[0][0]
PEEK = Message(
    "assistant", tool_calls=(ToolCall("c1", "peek", f'{{"box": "{TASK.params["box"]}"}}'),)
)
RIGHT = Message("assistant", str(TASK.params["number"]))
WRONG = Message("assistant", "I do not know.")


class Endpoint:
    """An endpoint with scripted replies that keeps what it was asked."""

    def __init__(self, *replies: Message | Exception, finish_reason: str = "stop") -> None:
        self.replies, self.finish_reason = replies, finish_reason
        self.asked: list[tuple[Message, ...]] = []
        self.sent: list[tuple[Any, ...]] = []

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        assert len(self.asked) < len(self.replies), "the script is exhausted"
        self.asked.append(tuple(messages))
        self.sent.append((tuple(tools), dict(headers or {}), dict(options or {})))
        reply = self.replies[len(self.asked) - 1]
        if isinstance(reply, Exception):
            raise reply
        return ChatReply(reply, Usage(output_tokens=5), self.finish_reason, {})


def serve(
    client: Endpoint, world: StaffedWorld | None = None, task: Task = TASK
) -> tuple[Served, list[dict[str, Any]]]:
    posted: list[dict[str, Any]] = []

    async def post(conversation: str, feedback: dict[str, Any]) -> None:
        assert conversation == "day-1-7"
        posted.append(feedback)

    return asyncio.run(serve_customer(task, world or BoxWorld(), client, post, VISIT)), posted


def test_served_customer_says_so() -> None:
    client = Endpoint(PEEK, RIGHT)
    served, posted = serve(client)
    assert posted == [{"source": "user", "kind": "outcome", "score": 1.0, "actor": "customer"}]
    assert served.trajectory.outcome is True
    assert served.is_corrected is False
    assert served.trajectory.stop_reason == "done"


def test_requests_carry_headers_options_tools_and_history() -> None:
    client = Endpoint(PEEK, RIGHT)
    serve(client)
    headers = {"x-nightshift-agent": "desk", "x-nightshift-conversation": "day-1-7"}
    options = {"max_tokens": 48, "temperature": 0.0}
    assert client.sent == [(TASK.tools, headers, options)] * 2
    first, second = client.asked
    assert [each.text for each in first[:2]] == ["Peek, then answer.", "Lessons:\n- Look."]
    assert second == (*first, PEEK, Message("tool", RIGHT.text, tool_call_id="c1", name="peek"))


def test_failed_customer_is_rescued_by_the_operator() -> None:
    served, posted = serve(Endpoint(WRONG))
    outcome, edit = posted
    assert (outcome["kind"], outcome["score"]) == ("outcome", 0.0)
    assert served.is_corrected
    assert served.trajectory.outcome is False
    messages = edit.pop("messages")
    assert edit == {
        "source": "user",
        "kind": "edit",
        "turn": 0,
        "before": "I do not know.",
        "actor": "operator",
    }
    assert [read_message(raw) for raw in messages] == BoxWorld().operator_solution(TASK)


def test_second_unparsable_action_ends_the_conversation() -> None:
    """Cut off at the token limit twice, as an untrained model is: the same rules as in the night's episodes."""
    desk = HelpDesk()
    task = desk.tasks(1, "train", Random(1))[0][0]
    prose = Message("assistant", "I would be happy to help you with")
    served, posted = serve(Endpoint(prose, prose, finish_reason="length"), desk, task)
    assert served.trajectory.stop_reason == "unparsable"
    assert [turn.error for turn in served.trajectory.turns] == ["cut off by the token limit"] * 2
    assert [feedback["kind"] for feedback in posted] == ["outcome", "edit"]
    first = read_message(posted[1]["messages"][0])
    assert first.tool_calls


def test_malformed_calls_are_unparsable_over_the_wire_too() -> None:
    broken = Message("assistant", tool_calls=(ToolCall("c", "peek", '{"box": '),))
    served, _ = serve(Endpoint(broken, WRONG))
    assert served.trajectory.turns[0].error is not None
    assert served.trajectory.turns[0].error.startswith("invalid arguments")


def test_violations_are_noted() -> None:
    desk = HelpDesk(kinds=("cancel",), email_rate=0.0)
    task = desk.tasks(1, "train", Random(1))[0][0]
    order = task.params["said"]["order"]
    call = ToolCall("c", "cancel_order", f'{{"order": "{order}"}}')
    reply = Message("assistant", f"Order {order} is cancelled.")
    _, posted = serve(Endpoint(Message("assistant", tool_calls=(call,)), reply), desk, task)
    assert [feedback["kind"] for feedback in posted] == ["violation", "outcome", "edit"]
    assert posted[0]["turn"] == 0
    assert posted[0]["source"] == "environment"
    assert posted[2]["before"] == f'cancel_order {{"order": "{order}"}}'


def test_failing_endpoint_leaves_no_feedback() -> None:
    served, posted = serve(Endpoint(PEEK, ModelCallError("503")))
    assert posted == []
    assert served.trajectory.outcome is None
    assert served.trajectory.stop_reason == "error: model: 503"
    assert served.is_corrected is False


def test_action_text() -> None:
    spoken = Message(
        "assistant", "One moment.", tool_calls=(ToolCall("c", "a", "{}"), ToolCall("d", "b", "{"))
    )
    assert action_text(spoken) == "One moment.\na {}\nb {"
    assert action_text(Message("assistant", None)) == ""

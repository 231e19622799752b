"""The day: customers come to the desk, the agent serves them through an endpoint, a person finishes what it could not.

The agent speaks over OpenAI-compatible HTTP, through the recording proxy, so what it does is in the log. Tools run here.
At the end the customer says whether the wish was met (feedback `outcome`). After a failure the operator takes over from
the customer's first words (feedback `edit`, turn 0): `before` is what the agent did first, `messages` is the corrected
conversation in OpenAI form. What breaks the shop's rules is noted as feedback `violation` when it happens.

Degenerate case: an endpoint that fails serves nobody; no feedback is written and the outcome stays unknown.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from components.harnesses._episode import Played, judged, play, read_action
from components.llm import ChatReply, write_message
from components.protocols import World
from components.records import Feedback, Message, Task, Trajectory, Turn
from components.serial import dump

AGENT_HEADER = "x-nightshift-agent"
CONVERSATION_HEADER = "x-nightshift-conversation"
PostFeedback = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Conversation id and one feedback in the proxy's form."""


class ChatModel(Protocol):
    """An OpenAI-compatible endpoint; `llm.ChatClient` is one."""

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ChatReply: ...


class StaffedWorld(World, Protocol):
    """A world with an operator who can do what the agent could not."""

    def operator_solution(self, task: Task) -> list[Message]:
        """The corrected conversation from the customer's words on."""
        ...


@dataclass(frozen=True, slots=True)
class Visit:
    """How one customer is served."""

    conversation: str
    """Id under which the proxy records it."""
    agent: str
    """The workload it belongs to."""
    max_tokens: int
    temperature: float = 1.0
    """0 means greedy."""
    memory: str = ""
    """Recalled lessons to put into the system message; empty for none."""


class Served(NamedTuple):
    trajectory: Trajectory
    """What happened, as the customer saw it; the log holds what the proxy saw."""
    is_corrected: bool
    """The operator finished it."""


async def serve_customer(
    task: Task, world: StaffedWorld, client: ChatModel, post_feedback: PostFeedback, visit: Visit
) -> Served:
    """Serve one customer to the end, the operator's part and the feedback included."""
    speaker = _Speaker(task.tools or world.tools, client, visit)
    played = await play(world, task, visit.memory, speaker.act)
    trajectory = _judged(task, world, visit, played)
    for violation in played.feedback:
        await post_feedback(visit.conversation, _feedback(violation))
    if trajectory.outcome is None:
        return Served(trajectory, is_corrected=False)
    outcome = Feedback("user", "outcome", score=float(trajectory.outcome), actor="customer")
    await post_feedback(visit.conversation, _feedback(outcome))
    if not trajectory.outcome:
        first = action_text(trajectory.turns[0].action)
        edit = Feedback("user", "edit", turn=0, before=first, actor="operator")
        messages = [write_message(message) for message in world.operator_solution(task)]
        await post_feedback(visit.conversation, {**_feedback(edit), "messages": messages})
    return Served(trajectory, is_corrected=not trajectory.outcome)


class _Speaker:
    """The agent's side of one conversation: the history and the endpoint."""

    def __init__(self, tools: Sequence[dict[str, Any]], client: ChatModel, visit: Visit) -> None:
        self.tools, self.client = tools, client
        self.headers = {AGENT_HEADER: visit.agent, CONVERSATION_HEADER: visit.conversation}
        self.options = {"max_tokens": visit.max_tokens, "temperature": visit.temperature}
        self.history: list[Message] = []

    async def act(self, index: int, observation: tuple[Message, ...]) -> Turn:
        self.history += observation
        reply = await self.client.chat(
            self.history, tools=self.tools, headers=self.headers, options=self.options
        )
        self.history.append(reply.message)
        return Turn(
            index=index,
            observation=observation,
            action=read_action(reply.message, None, reply.finish_reason),
            usage=reply.usage,
            finish_reason=reply.finish_reason,
        )


def _judged(task: Task, world: World, visit: Visit, played: Played) -> Trajectory:
    trajectory = Trajectory(
        id=visit.conversation,
        agent=visit.agent,
        turns=played.turns,
        task_id=task.id,
        conversation_id=visit.conversation,
        feedback=played.feedback,
        stop_reason=played.stop_reason,
        split=task.split,
        tools=task.tools or world.tools,
    )
    return judged(world, task, trajectory)


def action_text(action: Message) -> str:
    """An action on paper: what was said, then each call on a line."""
    calls = [f"{call.name} {call.arguments}" for call in action.tool_calls]
    return "\n".join([*filter(None, [action.text]), *calls])


def _feedback(feedback: Feedback) -> dict[str, Any]:
    """Feedback in the proxy's form: what was never assigned is left out."""
    return {key: value for key, value in dump(feedback).items() if value is not None}

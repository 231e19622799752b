"""One conversation at the help desk: the rules of a step.

An action is one or more tool calls, or a reply to the customer. A reply ends the episode. An action that cannot be read
(marked `unparsable: ...` by the harness, empty, or with no well-formed call among its calls) executes nothing; the
second of them ends the episode. So does the turn limit. Of an action with good and bad calls the good ones run.
"""

from components.environments._help_desk_shop import POLICY, READ_TOOLS, Scene, Shop
from components.errors import EnvError
from components.protocols import StepResult
from components.records import Feedback, Message, ToolCall
from components.serial import digest

MAX_UNPARSABLE = 2
NOT_UNDERSTOOD = "I did not get your answer."


def why_unparsable(action: Message) -> str | None:
    """Why nothing in this action can be executed or said to a customer, or None."""
    for mark in action.marks:
        if mark.startswith("unparsable"):
            return mark.partition(":")[2].strip() or mark
    if not action.tool_calls:
        return None if action.text.strip() else "empty action"
    problems = [call.problem for call in action.tool_calls]
    return None if None in problems else problems[0]


class Episode:
    """A shop, a customer and a turn counter; see the module."""

    def __init__(self, scene: Scene, instruction: str, max_turns: int) -> None:
        self.shop = Shop(scene)
        self.reply: str | None = None
        self.shown: list[str] = []
        """Arguments and result of every call that was done."""
        self.num_breaches = 0
        self.done = False
        self.opening: tuple[Message, ...] = (
            Message("system", POLICY),
            Message("user", instruction),
        )
        self._turns_left = max_turns
        self._index = -1
        self._num_unparsable = 0
        self._digest: str | None = None

    def step(self, action: Message) -> StepResult:
        """Execute the agent's action.

        Raises:
            EnvError: the episode is over.
        """
        if self.done:
            raise EnvError(
                f"the episode is over after {self._index + 1} actions: got another action"
            )
        self._index += 1
        self._turns_left -= 1
        unparsable = why_unparsable(action)
        if unparsable is not None:
            return self._unparsable(action, unparsable)
        if not action.tool_calls:
            self.reply = action.text
            return self._result((), "done")
        feedback: list[Feedback] = []
        answers = tuple(self._answer(call, feedback) for call in action.tool_calls)
        self.num_breaches += len(feedback)
        return self._result(answers, None, tuple(feedback))

    def _unparsable(self, action: Message, reason: str) -> StepResult:
        self._num_unparsable += 1
        answers = tuple(_tool_message(call, f"Error: {reason}") for call in action.tool_calls)
        over = self._num_unparsable >= MAX_UNPARSABLE
        return self._result(
            answers or (Message("user", NOT_UNDERSTOOD),),
            "unparsable" if over else None,
            reason=reason,
        )

    def _answer(self, call: ToolCall, feedback: list[Feedback]) -> Message:
        arguments = call.parsed
        if arguments is None:
            return _tool_message(call, f"Error: {call.problem}")
        result = self.shop.call(call.name, arguments)
        if not result.failed and call.name not in READ_TOOLS:
            self._digest = None
        if not result.failed:
            self.shown.append(f"{call.arguments} {result.text}")
        if result.breach is not None:
            feedback.append(
                Feedback(
                    "environment",
                    "violation",
                    score=0.0,
                    turn=self._index,
                    text=result.breach,
                    name=call.name,
                )
            )
        return _tool_message(call, result.text)

    def _result(
        self,
        observation: tuple[Message, ...],
        stop_reason: str | None,
        feedback: tuple[Feedback, ...] = (),
        reason: str | None = None,
    ) -> StepResult:
        if stop_reason is None and self._turns_left <= 0:
            stop_reason = "max_turns"
        self.done = stop_reason is not None
        if self._digest is None:
            self._digest = digest(self.shop.state)
        errors = sum(message.text.startswith("Error:") for message in observation)
        return StepResult(
            observation=() if self.done else observation,
            done=self.done,
            feedback=feedback,
            state_digest=self._digest,
            facts={"unparsable": reason, "num_tool_errors": 0 if reason else errors},
            stop_reason=stop_reason,
        )


def _tool_message(call: ToolCall, text: str) -> Message:
    return Message("tool", text, tool_call_id=call.id, name=call.name)

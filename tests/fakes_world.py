"""A toy world for tests: look into a box, then say the number that lies in it. One tool, two turns.

    agent  peek {"box": "b12"}
    tool   7
    agent  7

As a plug-in it is named `tests.fakes_world:BoxWorld`.
"""

from random import Random
from typing import Any, Literal

from components.plugins import plugin
from components.protocols import StepResult
from components.records import Message, ReferenceSolution, Task, ToolCall, Trajectory, Verdict
from components.serial import digest

PEEK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "peek",
        "description": "Look into a box.",
        "parameters": {
            "type": "object",
            "properties": {"box": {"type": "string"}},
            "required": ["box"],
        },
    },
}
SPLITS = ("train", "dev", "test")


class BoxEpisode:
    def __init__(self, task: Task, max_turns: int) -> None:
        self.opening = (Message("system", "Peek, then answer."), Message("user", task.instruction))
        self.reply: str | None = None
        self.peeked = False
        self._box, self._number = task.params["box"], task.params["number"]
        self._turns_left = max_turns

    def step(self, action: Message) -> StepResult:
        self._turns_left -= 1
        if not action.tool_calls:
            self.reply = action.text
            return StepResult(
                (), done=True, state_digest=digest(str(self.peeked)), stop_reason="done"
            )
        answers = tuple(self._answer(call) for call in action.tool_calls)
        over = self._turns_left <= 0
        return StepResult(
            () if over else answers,
            done=over,
            state_digest=digest(str(self.peeked)),
            stop_reason="max_turns" if over else None,
        )

    def _answer(self, call: ToolCall) -> Message:
        right = call.name == "peek" and call.parsed == {"box": self._box}
        self.peeked = self.peeked or right
        text = str(self._number) if right else "Error: no such box"
        return Message("tool", text, tool_call_id=call.id, name=call.name)


@plugin
class BoxWorld:
    max_turns: int = 4
    """Actions after which an episode ends."""

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        return (PEEK,)

    def tasks(
        self,
        num: int,
        split: Literal["train", "dev", "test"],
        rng: Random,
        skill_weights: dict[str, float] | None = None,
    ) -> list[tuple[Task, ReferenceSolution]]:
        """Boxes whose number is congruent to the split's place belong to the split; weights change nothing."""
        boxes = rng.sample(range(SPLITS.index(split), 3000, 3), num)
        return [self._task(box, rng.randrange(10), split) for box in boxes]

    def _task(
        self, box: int, number: int, split: Literal["train", "dev", "test"]
    ) -> tuple[Task, ReferenceSolution]:
        task = Task(
            id=f"box-{box}-{number}",
            instruction=f"What is in box b{box}?",
            environment="tests.fakes_world:BoxWorld",
            params={"box": f"b{box}", "number": number},
            tools=self.tools,
            required_skills=("peek",),
            split=split,
        )
        call = ToolCall("call_1", "peek", f'{{"box": "b{box}"}}')
        actions = (Message("assistant", tool_calls=(call,)), Message("assistant", str(number)))
        return task, ReferenceSolution(task.id, actions)

    def open(self, task: Task) -> BoxEpisode:
        return BoxEpisode(task, self.max_turns)

    def operator_solution(self, task: Task) -> list[Message]:
        call = ToolCall("call_1", "peek", f'{{"box": "{task.params["box"]}"}}')
        number = str(task.params["number"])
        return [
            Message("assistant", tool_calls=(call,)),
            Message("tool", number, tool_call_id=call.id, name="peek"),
            Message("assistant", number),
        ]

    def verify(self, task: Task, trajectory: Trajectory) -> Verdict:
        """Success: the box was opened, and the reply is its number."""
        episode = self.open(task)
        for turn in trajectory.turns:
            if turn.executor != "human" and episode.reply is None:
                episode.step(turn.action)
        said = (episode.reply or "").strip() == str(task.params["number"])
        criteria = {"peeked": float(episode.peeked), "said": float(said)}
        success = episode.peeked and said
        return Verdict(trajectory.id, "boxes", "1", success, float(success), criteria)

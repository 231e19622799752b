"""An engine that answers from a script, for tests, demonstrations and dry runs.

Answers are given in the order of the calls. Each may say which prompt it belongs to; another prompt, or a call after
the last answer, is an error that says so. A scripted token has probability one, so every log-probability is 0.0.

    engine = ScriptedEngine.of_actions(["get_order {\\"id\\": \\"W1\\"}", "It has shipped."], renderer)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from components.errors import ModelCallError
from components.protocols import Completion, Renderer, Sampling
from components.records import Message


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    completion_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...] | None = None
    """The prompt it must be asked with; None accepts any."""
    finish_reason: str = "stop"


class ScriptedEngine:
    """protocols.Engine from a list of answers."""

    def __init__(self, answers: Sequence[ScriptedAnswer], policy_version: str = "scripted") -> None:
        self.policy_version = policy_version
        self._answers = tuple(answers)
        self._num_used = 0

    @classmethod
    def of_actions(
        cls,
        actions: Sequence[str | Message],
        renderer: Renderer,
        policy_version: str = "scripted",
    ) -> "ScriptedEngine":
        """Answers as a policy of this renderer would emit them; plain text is an assistant message."""
        messages = [
            Message("assistant", action) if isinstance(action, str) else action
            for action in actions
        ]
        return cls(
            [ScriptedAnswer(tuple(renderer.completion(each))) for each in messages], policy_version
        )

    @property
    def num_left(self) -> int:
        """Answers not given yet."""
        return len(self._answers) - self._num_used

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """The next answer of the script.

        Raises:
            ModelCallError: the script is exhausted, expects another prompt, or is longer than allowed.
        """
        call = self._num_used + 1
        if not self.num_left:
            raise ModelCallError(
                f"the script is exhausted: call {call} came after its {len(self._answers)} answers"
            )
        answer = self._answers[self._num_used]
        prompt = tuple(prompt_ids)
        if answer.prompt_ids is not None and prompt != answer.prompt_ids:
            raise ModelCallError(
                f"call {call} of the script expects another prompt: they differ at token "
                f"{_first_difference(prompt, answer.prompt_ids)}, got {len(prompt)} tokens, expected "
                f"{len(answer.prompt_ids)}"
            )
        if len(answer.completion_ids) > sampling.max_tokens:
            raise ModelCallError(
                f"answer {call} of the script has {len(answer.completion_ids)} tokens, the caller "
                f"allows {sampling.max_tokens}; script a shorter one with finish_reason 'length'"
            )
        self._num_used = call
        return Completion(
            completion_ids=answer.completion_ids,
            logprobs=(0.0,) * len(answer.completion_ids),
            finish_reason=answer.finish_reason,
            policy_version=self.policy_version,
        )


def _first_difference(found: Sequence[int], expected: Sequence[int]) -> int:
    """Index of the first token that is not in both."""
    pairs = zip(found, expected, strict=False)
    return next(
        (index for index, (left, right) in enumerate(pairs) if left != right),
        min(len(found), len(expected)),
    )

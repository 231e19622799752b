"""The rules of an episode that every agent loop shares: what counts as an action, how turns follow, who judges.

An action is unparsable when it was cut off by its token limit, is empty, cannot be read, or holds only malformed calls.
It is marked `unparsable: <why>`, so the environment executes nothing of it. An action with a good call among bad ones is
not marked: the good ones run.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from components.errors import ModelCallError, NightshiftError
from components.protocols import World
from components.records import Feedback, Message, Task, Trajectory, Turn
from components.tokens import with_memory

MARK = "unparsable: "
Act = Callable[[int, tuple[Message, ...]], Awaitable[Turn]]
"""Turn index and observation -> the turn with its action; the loop adds what the environment says."""


class Finished(Exception):
    """An agent loop ends the episode itself; the message is the stop reason."""


class Played(NamedTuple):
    turns: tuple[Turn, ...]
    feedback: tuple[Feedback, ...]
    stop_reason: str


def read_action(message: Message, problem: str | None, finish_reason: str | None) -> Message:
    """The message, marked when it is no action."""
    why = _why_unparsable(message, problem, finish_reason)
    return message if why is None else replace(message, marks=(*message.marks, MARK + why))


def _why_unparsable(message: Message, problem: str | None, finish_reason: str | None) -> str | None:
    if finish_reason == "length":
        return "cut off by the token limit"
    if message.tool_calls:
        problems = [call.problem for call in message.tool_calls]
        return None if None in problems else problem or problems[0]
    return problem or (None if message.text.strip() else "empty action")


def unparsable_reason(action: Message) -> str | None:
    """What `read_action` found wrong, or None."""
    return next((mark.removeprefix(MARK) for mark in action.marks if mark.startswith(MARK)), None)


async def play(world: World, task: Task, memory: str, act: Act) -> Played:
    """Open the task, act and step until the environment ends the episode. A failure is the stop reason `error: ...`."""
    turns: list[Turn] = []
    feedback: list[Feedback] = []
    source, fidelity = "live", 1.0
    try:
        environment = world.open(task)
        observation = with_memory(environment.opening, memory)
        while True:
            turn = await act(len(turns), observation)
            result = environment.step(turn.action)
            turns.append(
                replace(
                    turn,
                    observation_source=source,
                    fidelity=fidelity,
                    state_digest=result.state_digest,
                    env_facts=result.facts,
                    error=unparsable_reason(turn.action),
                )
            )
            feedback += result.feedback
            if result.done:
                return Played(tuple(turns), tuple(feedback), result.stop_reason or "done")
            observation = result.observation
            source, fidelity = result.observation_source, result.fidelity
    except Finished as finished:
        return Played(tuple(turns), tuple(feedback), str(finished))
    except AssertionError:
        raise  # Our own invariant, or a script that a test wrote wrongly: no fact about the episode.
    except Exception as error:
        return Played(tuple(turns), tuple(feedback), _describe(error))


def _describe(error: Exception) -> str:
    """The stop reason of an episode that failed outside the agent's will."""
    who = "model" if isinstance(error, ModelCallError) else "episode"
    kind = "" if isinstance(error, NightshiftError) else f"{type(error).__name__}: "
    return f"error: {who}: {kind}{error}"


def judged(world: World, task: Task, trajectory: Trajectory) -> Trajectory:
    """The trajectory with the world's verdict: outcome, and one feedback per criterion.

    An episode that failed outside the agent is not judged. A verifier that fails leaves the outcome unknown and a mark
    with its reason.
    """
    if trajectory.stop_reason is not None and trajectory.stop_reason.startswith("error"):
        return trajectory
    try:
        verdict = world.verify(task, trajectory)
    except AssertionError:
        raise
    except Exception as error:
        mark = f"verifier failed: {type(error).__name__}: {error}"
        return replace(trajectory, marks=(*trajectory.marks, mark))
    criteria = tuple(
        Feedback("verifier", "criterion", score=score, name=name)
        for name, score in verdict.criteria.items()
    )
    outcome = Feedback("verifier", "outcome", score=verdict.score, name=verdict.verifier)
    return replace(
        trajectory,
        outcome=verdict.success,
        outcome_source=None if verdict.success is None else "verifier",
        feedback=(*trajectory.feedback, *criteria, outcome),
    )

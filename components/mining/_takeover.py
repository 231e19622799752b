"""The agent's steps beside the operator's: the first deviation is the first wrong turn.

Both sides start at the turn from which the operator took over. Order of independent calls does not matter: each step of the
agent uses up one equal step of the operator. The first step that equals none names the deviation:

    wrong_argument     the operator calls the same tool with other arguments
    wrong_tool         another call was due (the operator's first call not yet made)
    unparsable_action  the step cannot be read
    missing_step       a reply, or the end, while calls are still due; the turn is where the due call was passed over
    wrong_reply        all calls were made, and the reply lacks a figure or identifier of the operator's reply, is
                       absent, or just reads otherwise
    extra_step         a call that nobody needed
    disputed_verdict   nothing deviates: whoever judged is in doubt (fault: verifier)

Our choice: a deviation that the agent repaired (it made the due step later) and a call that nobody needed are blamed only
when nothing else deviates and the reply has all facts. An agent that did nothing gives no finding.
"""

import re
from collections.abc import Sequence

from components.mining._finding import Finding
from components.mining._steps import Step, differing, same_step, steps_of
from components.records import Trajectory, Turn

PEOPLE = ("human", "teacher")


def takeover(trajectory: Trajectory) -> Finding | None:
    """What went wrong before a person took over, or None when nobody did."""
    turns = trajectory.turns
    place = next((at for at, turn in enumerate(turns) if turn.executor in PEOPLE), None)
    before = [turn for turn in turns[:place] if turn.executor == "policy"]
    if place is None or not before:
        return None
    run = len(turns)
    for at in range(place, len(turns)):
        if turns[at].executor not in PEOPLE:
            run = at
            break
    start = _start(trajectory, turns[place], before)
    agent = steps_of([turn for turn in before if turn.index >= start], trajectory)
    return compare(agent, steps_of(turns[place:run], trajectory), trajectory.outcome)


def _start(trajectory: Trajectory, first: Turn, before: Sequence[Turn]) -> int:
    """Index of the turn that the operator began to redo."""
    for feedback in trajectory.feedback:
        if feedback.kind == "edit" and feedback.turn is not None:
            return feedback.turn
    same = [turn.index for turn in before if turn.observation == first.observation]
    return same[0] if same else before[-1].index


def compare(
    agent: Sequence[Step], person: Sequence[Step], outcome: bool | None = False
) -> Finding | None:
    """The first deviation of the agent's steps from the operator's."""
    if not agent or not person:
        return None
    due = list(person)
    passed: dict[int, int] = {}
    """Operator's step (by identity) -> the turn at which the agent went past it."""
    excused: Finding | None = None
    for at, step in enumerate(agent):
        found = _use_up(step, due, passed)
        if found is None:
            continue
        wanted, finding = found
        repaired = wanted is None or any(same_step(later, wanted) for later in agent[at + 1 :])
        if not repaired:
            return finding
        excused = excused or _as_extra(finding, step)
    missing = _left_over(agent, due, passed)
    if missing is not None:
        return missing
    return _judge_reply(agent, person, excused, outcome)


def _use_up(
    step: Step, due: list[Step], passed: dict[int, int]
) -> tuple[Step | None, Finding] | None:
    """Take the operator's equal step off the list; else the step that was wanted, and the deviation."""
    calls = [other for other in due if other.kind == "call"]
    if step.kind == "reply":
        if due and due[0].kind == "call":
            return due[0], _missing(due[0], step, passed)
        if due:
            due.pop(0)
        return None
    match = next((at for at, other in enumerate(due) if same_step(step, other)), None)
    if match is not None:
        for other in due[:match]:
            passed.setdefault(id(other), step.turn)
        due.pop(match)
        return None
    wanted = calls[0] if calls else next(iter(due), None)
    if step.kind == "unreadable":
        tool = wanted.tool if wanted else None
        return wanted, _finding("unparsable_action", step, tool, step.reason, wanted)
    twin = next((other for other in calls if other.tool == step.tool), None)
    if twin is not None:
        names = ",".join(differing(step.arguments, twin.arguments))
        return twin, _finding("wrong_argument", step, step.tool, names, twin)
    if calls:
        return calls[0], _finding(
            "wrong_tool", step, calls[0].tool, f"issued {step.tool}", calls[0]
        )
    return None, _finding("extra_step", step, step.tool, "", None)


def _finding(kind: str, step: Step, tool: str | None, detail: str, wanted: Step | None) -> Finding:
    quotes = [(step.turn, f"agent: {step.text}")]
    if wanted is not None:
        quotes.append((wanted.turn, f"operator: {wanted.text}"))
    return Finding(kind, "model", step.turn, tool, detail, tuple(quotes))


def _missing(wanted: Step, step: Step, passed: dict[int, int]) -> Finding:
    turn = passed.get(id(wanted), step.turn)
    quotes = ((step.turn, f"agent: {step.text}"), (wanted.turn, f"operator: {wanted.text}"))
    return Finding("missing_step", "model", turn, wanted.tool, "", quotes)


def _as_extra(finding: Finding, step: Step) -> Finding:
    """A repaired wrong tool is a call too many; other repaired deviations keep their kind."""
    if finding.kind != "wrong_tool":
        return finding
    return Finding("extra_step", "model", step.turn, step.tool, "", finding.quotes[:1])


def _left_over(agent: Sequence[Step], due: list[Step], passed: dict[int, int]) -> Finding | None:
    call = next((other for other in due if other.kind == "call"), None)
    return None if call is None else _missing(call, agent[-1], passed)


def _judge_reply(
    agent: Sequence[Step], person: Sequence[Step], excused: Finding | None, outcome: bool | None
) -> Finding | None:
    tool = next((step.tool for step in reversed(person) if step.kind == "call"), None)
    said = next((step for step in reversed(agent) if step.kind == "reply"), None)
    wanted = next((step for step in reversed(person) if step.kind == "reply"), None)
    if wanted is not None:
        if said is None:
            return excused or _finding("wrong_reply", agent[-1], tool, "no reply", wanted)
        if facts(wanted.text) - facts(said.text):
            return _finding("wrong_reply", said, tool, "", wanted)
    if excused is not None:
        return excused
    if wanted is not None and said is not None and _letters(said.text) != _letters(wanted.text):
        return _finding("wrong_reply", said, tool, "", wanted)
    if outcome is not False:
        return None
    quotes = ((agent[-1].turn, f"agent: {agent[-1].text}"),)
    return Finding("disputed_verdict", "verifier", None, tool, "", quotes)


def facts(text: str) -> set[str]:
    """Figures and identifiers in a reply: words with a digit, compared without case or punctuation."""
    words = re.findall(r"[\w.-]*\d[\w.-]*", text.casefold())
    return {word.strip(".-") for word in words}


def _letters(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))

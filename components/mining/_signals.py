"""Signals of failure that need no operator: each looks at one trajectory and gives a `Finding` or None."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from components.embedding import mask
from components.mining._finding import Finding
from components.mining._steps import Step, error_text, is_marked_unparsable, shorten, steps_of
from components.records import Feedback, Trajectory

Signal = Callable[[Trajectory, list[Step]], Finding | None]

CAUSES: tuple[tuple[str, str], ...] = (
    ("rate limit", r"rate.?limit|\b429\b|quota"),
    ("timeout", r"tim(ed|e) ?out|deadline"),
    (
        "context too long",
        r"context.{0,20}(length|window|limit|fit)|too (long|many tokens)|does not fit",
    ),
    ("connection", r"connect|refused|reset|unreachable|network"),
    ("server error", r"\b50[0-4]\b|overloaded|unavailable|internal|bad gateway"),
    ("request refused", r"\b4\d\d\b|invalid|provider returned"),
)
ENVIRONMENT = re.compile(r"(episode|EnvError)\b\W*")
"""How the stop reason of a run begins whose environment failed; `model: ...` is the endpoint."""
REWRITTEN = 0.7
"""Share of characters changed above which an edit is a rewrite (Echo)."""
COMPARED = 2_000
"""Characters of an edit that are compared; the rest counts as unchanged."""


def policy_steps(trajectory: Trajectory) -> list[Step]:
    return steps_of([turn for turn in trajectory.turns if turn.executor == "policy"], trajectory)


def cause_of(text: str) -> str:
    """A few words for an error message, the same for all messages of one cause."""
    for name, pattern in CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return name
    return _clause(text)


def _clause(text: str) -> str:
    """The first clause of an error message without particulars."""
    words = re.sub(r"^\W*(error|exception)\W+", "", text.strip(), flags=re.IGNORECASE)
    return mask(re.split(r"[.;:{\n]", words)[0]).strip().lower()[:60] or "no detail"


def last_tool(steps: Sequence[Step]) -> str | None:
    return next((step.tool for step in reversed(steps) if step.tool), None)


def infrastructure(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """The endpoint, the engine or the agent's own loop failed."""
    reason = trajectory.stop_reason or ""
    marks = [mark for mark in trajectory.marks if "provider error" in mark]
    last = trajectory.turns[-1] if trajectory.turns else None
    silent = last is not None and not last.action.text and not last.action.tool_calls
    if last is not None and silent and last.error and not is_marked_unparsable(last):
        marks.append(last.error)
    text = reason if reason.startswith("error") else next(iter(marks), "")
    if not text:
        return None
    turn = last.index if last else None
    message = re.sub(r"^error\W*", "", text)
    if re.match(ENVIRONMENT, message):
        detail = cause_of(re.sub(ENVIRONMENT, "", message))
        return Finding(
            "tool_failure", "environment", turn, last_tool(steps), detail, ((turn, text),)
        )
    return Finding(
        "infrastructure", "infrastructure", turn, None, cause_of(message), ((turn, text),)
    )


def tool_failure(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """A tool answered with a failure of its own and never worked again."""
    for at, step in enumerate(steps):
        worked = any(
            later.tool == step.tool and later.answer is not None and later.error is None
            for later in steps[at + 1 :]
        )
        if step.error == "server" and not worked:
            said = step.answer.text if step.answer else ""
            detail = cause_of(error_text(said) or said)
            quotes = ((step.turn, step.text), (step.turn, said))
            return Finding("tool_failure", "environment", step.turn, step.tool, detail, quotes)
    return None


def violation(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """The environment recorded a broken rule."""
    for feedback in trajectory.feedback:
        if feedback.kind != "violation":
            continue
        step = _at(feedback, steps)
        detail = feedback.name or _clause(feedback.text or "")
        quotes = ((feedback.turn, step.text if step else ""), (feedback.turn, feedback.text or ""))
        tool = step.tool if step else None
        return Finding("policy_violation", "model", feedback.turn, tool, detail, quotes)
    return None


def _at(feedback: Feedback, steps: Sequence[Step]) -> Step | None:
    return next((step for step in steps if step.turn == feedback.turn), None)


def malformed_call(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """A call whose arguments cannot be read; one that the token limit cut is a cut, and nobody knows whose fault."""
    for step in steps:
        if step.kind != "unreadable":
            continue
        quotes = ((step.turn, step.text),)
        if step.cut:
            return Finding("cut_off", "unclear", step.turn, step.tool, "token limit", quotes)
        kind = "malformed_call" if step.tool else "unparsable_action"
        return Finding(kind, "model", step.turn, step.tool, step.reason, quotes)
    return None


def unanswered_call(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """The log goes on and a call has no result: the loop around the agent lost it."""
    for step in steps:
        if step.missing:
            quotes = ((step.turn, step.text),)
            return Finding("unanswered_call", "infrastructure", step.turn, step.tool, "", quotes)
    return None


def repeated_call(trajectory: Trajectory, steps: list[Step], times: int) -> Finding | None:
    """One call with the same arguments, `times` in a row or more, after an error or with the same answer."""
    calls = [step for step in steps if step.kind == "call"]
    run = 1
    for at, (before, step) in enumerate(pairwise(calls), start=1):
        same = step.tool == before.tool and step.arguments == before.arguments
        in_vain = before.error is not None or _text(before) == _text(step)
        run = run + 1 if same and in_vain else 1
        if run >= times:
            first = calls[at - run + 2]
            quotes = ((first.turn, first.text), (first.turn, _text(before)))
            detail = "after an error" if before.error else "same answer"
            return Finding("repeated_call", "model", first.turn, step.tool, detail, quotes)
    return None


def _text(step: Step) -> str:
    return "" if step.answer is None else step.answer.text


def tool_error(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """A tool refused a call and the agent did not recover.

    Recovered: the same tool worked later; where nothing is known to be wrong, any later call that worked will do.
    """
    for at, step in enumerate(steps):
        later = [other for other in steps[at + 1 :] if other.answer is not None and not other.error]
        if trajectory.outcome is False:
            later = [other for other in later if other.tool == step.tool]
        if step.error == "caller" and not later:
            said = _text(step)
            quotes = ((step.turn, step.text), (step.turn, said))
            detail = _clause(error_text(said) or said)
            return Finding("tool_error", "model", step.turn, step.tool, detail, quotes)
    return None


def correction(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """A person edited or refused what the agent proposed, and the log holds no corrected turns."""
    for feedback in trajectory.feedback:
        kind, detail = _judge(feedback)
        if kind is None:
            continue
        step = _at(feedback, steps)
        quotes = (
            (feedback.turn, feedback.before or (step.text if step else "")),
            (feedback.turn, feedback.after or feedback.text or ""),
        )
        fault = "model" if kind == "edited" else "unclear"
        return Finding(kind, fault, feedback.turn, step.tool if step else None, detail, quotes)
    return None


def _judge(feedback: Feedback) -> tuple[str | None, str]:
    if feedback.kind == "edit" and feedback.before is not None and feedback.after is not None:
        detail = edit_class(feedback.before, feedback.after)
        return (None, "") if detail == "accepted" else ("edited", detail)
    if feedback.kind == "reject":
        return "rejected", f"by {feedback.source}"
    low = feedback.kind == "rating" and feedback.score is not None and feedback.score < 0.5
    return ("rejected", f"low rating by {feedback.source}") if low else (None, "")


def edit_class(before: str, after: str) -> str:
    """`accepted`, `refined`, `rewritten` or `deleted`, from the normalised edit distance.

    d = lev(before, after) / max(|before|, |after|);  d = 0 accepted, d <= 0.7 refined, else rewritten; no text: deleted.
    Source: arXiv 2605.21984; the bound 0.7 is our choice.
    """
    if before == after:
        return "accepted"
    if not after.strip():
        return "deleted"
    distance = levenshtein(before[:COMPARED], after[:COMPARED])
    return "refined" if distance <= REWRITTEN * max(len(before), len(after)) else "rewritten"


def levenshtein(left: str, right: str) -> int:
    """Insertions, deletions and replacements that turn one text into the other."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            cost = diagonal + (a != b)
            diagonal = row[j]
            row[j] = min(row[j] + 1, row[j - 1] + 1, cost)
    return row[-1]


def cut_off(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """The episode ended at a limit, not at a reply."""
    reason = trajectory.stop_reason or ""
    turns = [turn for turn in trajectory.turns if turn.executor == "policy"]
    if reason not in ("length", "max_turns"):
        if not turns or turns[-1].finish_reason != "length":
            return None
        reason = "length"
    turn = turns[-1].index if turns else None
    detail = "turn limit" if reason == "max_turns" else "token limit"
    quotes = ((turn, steps[-1].text if steps else ""),)
    return Finding("cut_off", "unclear", turn, last_tool(steps), detail, quotes)


def disputed_outcome(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """Two sources judged the outcome and disagree; the task or a judge is in doubt."""
    judged = [f for f in trajectory.feedback if f.kind == "outcome" and f.score is not None]
    good = sorted({f.source for f in judged if (f.score or 0.0) >= 0.5})
    bad = sorted({f.source for f in judged if (f.score or 0.0) < 0.5})
    if not good or not bad:
        return None
    detail = f"{'+'.join(bad)} against {'+'.join(good)}"
    quotes = tuple((f.turn, f"{f.source}: {f.score:g} {f.text or ''}") for f in judged)
    return Finding("disputed_outcome", "unclear", None, last_tool(steps), detail, quotes)


def wrong_outcome(trajectory: Trajectory, steps: list[Step]) -> Finding | None:
    """Judged a failure, and no signal says where."""
    if trajectory.outcome is not False:
        return None
    failed = [f for f in trajectory.feedback if f.kind in ("criterion", "outcome") and f.score == 0]
    quotes = tuple((f.turn, f"{f.name or f.source}: {f.text or 'failed'}") for f in failed)
    judge = trajectory.outcome_source
    fault = "model" if steps and judge in ("verifier", "environment") else "unclear"
    text = steps[-1].text if steps else shorten(trajectory.stop_reason or "")
    return Finding("wrong_outcome", fault, None, last_tool(steps), "", ((None, text), *quotes))

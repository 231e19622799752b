"""What a person decides about a failure case, and what that changes.

Curation reads reviews as they stand when a night begins: a dismissed case takes its trajectory out of the data, a
confirmed one makes its correction weigh twice, an undecided one leaves it in. A decision names the version that the person saw; one that comes second is
refused and says who was first.
"""

from dataclasses import replace

import streamlit as st

from components.errors import Conflict, StoreError
from components.records import FailureCase, ReviewVerdict, Split
from store import cases, modes, nights, reviews
from store.cases import StoredCase
from store.db import Conn
from ui import format as fmt
from ui import listing, session

QUEUE = "failures"
NOTE = "note"


def effect(verdict: ReviewVerdict, case: FailureCase, split: Split | None) -> str:
    """What a verdict does to the data of the next night."""
    if split != "train":
        return "The data stays as it is: this conversation is not among those that are trained on."
    if verdict == "dismissed":
        return "Tonight's data will leave this trajectory out."
    if case.fault == "infrastructure":
        return "Tonight's data leaves this trajectory out all the same: the infrastructure failed, not the agent."
    if verdict == "confirmed":
        return "Tonight's data will keep this trajectory and weigh its correction twice."
    return "Tonight's data will keep this trajectory."


def decide(
    seen: StoredCase, verdict: ReviewVerdict, split: Split | None, following: str | None
) -> None:
    """Write a verdict on the case as it was seen, and open the following one."""
    note = str(st.session_state.get(NOTE, "")).strip()
    change = reviews.Change(session.actor(), note, verdict)
    if _write(seen, change):
        done = fmt.VERDICTS[verdict].capitalize()
        told = effect(verdict, seen.case, split) + _if_running()
        session.say("success", f"{done}: {fmt.gist(seen.case.summary, 90)} — {told}")
        st.session_state[NOTE] = ""
        listing.choose(QUEUE, following)


def change(seen: StoredCase, wanted: reviews.Change) -> None:
    """Write another mode, fault or summary; the case stays open."""
    if _write(seen, replace(wanted, actor=session.actor())):
        session.say("success", "Changed. The next night reads the case as it stands now.")
    listing.choose(QUEUE, seen.case.id)


def rename(mode_id: str, seen_version: int, name: str) -> None:
    """Give a mode a name of a person's own."""
    if not session.is_named():
        return
    with session.writing() as conn:
        modes.rename(conn, mode_id, seen_version, name, session.actor(), session.now())
        session.say(
            "success", f"The mode is called “{fmt.gist(name)}” from now on, in every night."
        )


def _write(seen: StoredCase, wanted: reviews.Change) -> bool:
    """Whether the decision was written."""
    if not session.is_named():
        return False
    case_id = seen.case.id
    try:
        with session.database().connect() as conn:
            reviews.decide(conn, case_id, seen.version, wanted, session.now())
    except Conflict:
        with session.database().connect() as conn:
            session.say("warning", _who_was_first(conn, case_id))
        listing.choose(QUEUE, case_id)
        return False
    except StoreError as error:
        session.say("error", str(error))
        return False
    return True


def _who_was_first(conn: Conn, case_id: str) -> str:
    past = reviews.history(conn, case_id)
    if not past:
        return "The case changed meanwhile. Nothing of yours was written; it is shown as it stands now."
    last = past[-1]
    return (
        f"{last.change.actor} was first: {told(last.change)}, {fmt.moment(last.decided_at)}. "
        "Nothing of yours was written; the case is shown as it stands now."
    )


def told(change: reviews.Change) -> str:
    """A decision in words."""
    parts = [
        change.verdict or "",
        "moved it to another mode" if change.mode_id else "",
        f"fault: {change.fault}" if change.fault else "",
        "new summary" if change.summary else "",
    ]
    reason = f" (“{fmt.gist(change.reason, 120)}”)" if change.reason else ""
    return ", ".join(part for part in parts if part) + reason


def _if_running() -> str:
    """A night that runs does not see this decision."""
    with session.database().connect() as conn:
        last = next(iter(nights.recent(conn, session.agent(), 1)), None)
    if last is None or last.status != "running":
        return ""
    return f" Night {last.night} runs with the decisions of its beginning; this one counts in the night after."


def num_waiting(conn: Conn) -> int:
    """Cases that nobody decided yet."""
    return cases.count(conn, cases.CaseFilter(agent=session.agent(), verdict="open"))

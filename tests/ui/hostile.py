"""Log text that tries things: markup, Markdown, directions, control characters, a message of a megabyte."""

from dataclasses import replace
from datetime import timedelta

from components.records import (
    Bundle,
    CurationStrategy,
    Dropped,
    Evidence,
    Example,
    Feedback,
    MemoryEntry,
    Message,
    ToolCall,
    Turn,
)
from components.serial import digest
from store import (
    bundles,
    cases,
    memory,
    modes,
    nights,
    promotions,
    reviews,
    strategies,
    trajectories,
)
from store.db import Conn
from store.files import FileStore
from tests.store.records import case, mode, unit
from tests.store.records import trajectory as plain_trajectory
from tests.ui.desk_logs import AGENT, lineage
from tests.ui.seed import FIRST
from tests.ui.seed_figures import Outcome, evaluate, summary_of

SCRIPT = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
LINK = "[click](javascript:alert(1)) **bold** `code` $x$ :red[a] :material/delete: # head"
BIDI = "user\u202etxt.exe\u202c \u2066hidden\u2069 \u200b\x07"
EVIL = f"{SCRIPT} {LINK} {BIDI}"
NIGHT = "2026-03-01"
HUGE = f"{EVIL} " + "x" * 1_000_000


def fill(conn: Conn, files: FileStore) -> None:
    """One night in which every text is hostile."""
    turns = tuple(_turn(index) for index in range(60))
    trajectory = replace(
        plain_trajectory("t-evil", turns, AGENT),
        conversation_id=EVIL,
        task_id=EVIL,
        stop_reason=EVIL,
        policy=EVIL,
        marks=(EVIL,),
        feedback=(Feedback("user", "outcome", 0.0, text=HUGE, name=EVIL, actor=EVIL),),
    )
    trajectories.put(conn, files, [trajectory], NIGHT, "production")
    found = replace(
        case("c-evil", "t-evil", "m-evil"),
        summary=EVIL,
        signature=f"wrong_tool|{EVIL}|{EVIL}",
        evidence=(Evidence(1, EVIL), Evidence(None, EVIL)),
    )
    cases.put(conn, [found], AGENT, NIGHT)
    change = reviews.Change(EVIL, EVIL, "dismissed")
    reviews.decide(conn, found.id, 0, change, FIRST - timedelta(hours=1))
    evil_mode = replace(mode("m-evil", EVIL, n2026_03_01=1), description=EVIL, signature=EVIL)
    modes.put(conn, [evil_mode], AGENT)
    bundle = _data(conn)
    _lesson(conn)
    outcome = Outcome(NIGHT, 1, bundle, 1, (EVIL,))
    outcome = replace(outcome, decided=evaluate(conn, outcome))
    made = summary_of(outcome, [evil_mode])
    made["note"] = EVIL
    made["stages"][0]["line"] = HUGE
    row = nights.Night(NIGHT, AGENT, "done", FIRST, EVIL, EVIL, made, FIRST)
    nights.put(conn, row)
    wish = promotions.Wish(AGENT, "promote", EVIL, EVIL, EVIL, EVIL)
    promotions.ask(conn, wish, FIRST)


def _turn(index: int) -> Turn:
    said = HUGE if index == 1 else EVIL
    call = ToolCall(EVIL, EVIL, f'{{"text": "{"y" * 3000}"' if index % 2 else EVIL)
    return Turn(
        index, (Message("user", said),), Message("assistant", EVIL, (call,)), error=EVIL, finish_reason=EVIL
    )  # fmt: skip


def _data(conn: Conn) -> Bundle:
    source = f'"""{SCRIPT} {LINK}"""\n'
    strategy = CurationStrategy(
        digest(source), source, "initial", lineage("curation/rules"), status="accepted"
    )
    strategies.put(conn, strategy, AGENT, NIGHT)
    example = Example(
        "e-evil", "sft", (Message("user", HUGE), Message("assistant", EVIL)), (1,), "t-evil",
        mode_ids=("m-evil",),
    )  # fmt: skip
    bundle = Bundle(
        digest("evil"), strategy.id, (example,), (), (), (Dropped("t-evil", EVIL),), lineage("x")
    )
    bundles.put(conn, bundle, AGENT, NIGHT)
    return bundle


def _lesson(conn: Conn) -> None:
    entry = MemoryEntry(
        "l-evil", 1, "lesson", EVIL, HUGE, ("t-evil", EVIL), AGENT, lineage("memory/lessons")
    )
    change = memory.Change([entry], [unit(0)], actor=EVIL, reason=EVIL)
    memory.commit(conn, AGENT, change, "k", 0, FIRST)

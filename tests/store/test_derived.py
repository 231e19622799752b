"""Strategies, bundles, tasks with their solutions, reports, promotions and nights come back as they were written."""

import dataclasses
from datetime import datetime, timedelta

import pytest

from components.errors import Conflict, RecordError, StoreError
from components.records import (
    Bundle,
    Criterion,
    CurationStrategy,
    Decision,
    Dropped,
    Example,
    Message,
    PairedStats,
    ReferenceSolution,
    Report,
    RolloutRequest,
    Task,
    ToolCall,
)
from store import bundles, nights, promotions, references, reports, strategies, tasks
from store.db import Conn
from store.nights import Night
from store.promotions import Wish
from tests.store.records import LINEAGE, TOOL

pytestmark = pytest.mark.postgres


def strategy(key: str, **changes: object) -> CurationStrategy:
    made = CurationStrategy(key, f"def curate(corpus): return {key!r}", "initial", LINEAGE)
    return dataclasses.replace(made, **changes)  # pyright: ignore[reportArgumentType]


def test_strategies(conn: Conn) -> None:
    """Scored, then accepted: the source stays, the scores stay when a later write brings none."""
    first = strategy("s-1", status="accepted")
    child = strategy("s-2", parent_id="s-1", motivating_cases=("c-1",))
    strategies.put(conn, first, "desk", "2026-01-30")
    strategies.put(conn, child, "desk", "2026-01-31")
    assert strategies.accepted(conn, "desk") == first
    scored = dataclasses.replace(child, scores={"recall": 0.5}, status="scored")
    strategies.put(conn, scored, "desk", "2026-01-31")
    strategies.put(conn, dataclasses.replace(child, status="accepted"), "desk", "2026-01-31")
    best = dataclasses.replace(scored, status="accepted")
    assert strategies.get(conn, "desk", "s-2") == best
    assert strategies.accepted(conn, "desk") == best
    assert strategies.recent(conn, "desk") == [best, first]
    assert strategies.accepted(conn, "other") is None
    with pytest.raises(RecordError, match="stored with another source"):
        strategies.put(conn, dataclasses.replace(child, source="pass"), "desk", "2026-01-31")
    with pytest.raises(RecordError, match="no text"):
        strategies.put(conn, strategy("s-3", source="x = '\0'"), "desk", "2026-01-31")


def test_agents_judge_the_same_program_for_themselves(conn: Conn) -> None:
    """What one agent rejects another accepts; each finds its own verdict, whoever wrote last."""
    made = strategy("s-1")
    for agent, verdict in (("desk", "rejected"), ("shop", "accepted"), ("desk", "rejected")):
        strategies.put(conn, dataclasses.replace(made, status=verdict), agent, "2026-01-30")
    accepted = dataclasses.replace(made, status="accepted")
    assert strategies.accepted(conn, "desk") is None
    assert strategies.accepted(conn, "shop") == accepted
    assert strategies.get(conn, "desk", "s-1") == dataclasses.replace(made, status="rejected")
    assert strategies.get(conn, "shop", "s-1") == accepted


def test_bundles(conn: Conn) -> None:
    messages = (Message("user", "hi\0"), Message("assistant", None, (ToolCall("1", "f", "{}"),)))
    examples = tuple(
        Example(f"x-{n}", "sft", messages, (1,), f"t-{n}", weight=0.5) for n in range(3)
    )
    dropped = (
        Dropped("t-8", "too short"),
        Dropped("t-9", "duplicate"),
        Dropped("t-7", "too short"),
    )
    requests = (RolloutRequest(("refund",), 2.0, ("m-1",)),)
    bundle = Bundle("b-1", "s-1", examples, requests, ("t-1",), dropped, LINEAGE)
    assert bundles.put(conn, bundle, "desk", "2026-01-31")
    assert not bundles.put(conn, bundle, "desk", "2026-01-31")
    clean = (Message("user", "hi\ufffd"), messages[1])
    stored = tuple(dataclasses.replace(example, messages=clean) for example in examples)
    assert bundles.get(conn, "b-1") == dataclasses.replace(bundle, examples=stored)
    (second,) = bundles.page(conn, "b-1", True, limit=1, offset=1)
    assert (second.position, second.trajectory_id, second.example) == (1, "t-1", stored[1])
    assert [(item.trajectory_id, item.reason) for item in bundles.page(conn, "b-1", False)] == [
        ("t-8", "too short"),
        ("t-9", "duplicate"),
        ("t-7", "too short"),
    ]
    short = bundles.page(conn, "b-1", False, limit=1, offset=1, reason="too short")
    assert [item.trajectory_id for item in short] == ["t-7"]
    assert bundles.fates(conn, "b-1", ["t-1", "t-9", "t-6"]) == {
        "t-1": (1, None, 0.5),
        "t-9": (0, "duplicate", None),
    }
    assert bundles.reasons(conn, "b-1") == {"too short": 2, "duplicate": 1}
    assert bundles.recent(conn, "desk") == [("b-1", "2026-01-31", "s-1", 3, 3)]
    assert bundles.using(conn, "t-1") == ["b-1"]
    assert bundles.using(conn, "t-8") == []
    with pytest.raises(StoreError, match="no bundle 'b-7'"):
        bundles.get(conn, "b-7")


def test_empty_bundle(conn: Conn) -> None:
    empty = Bundle("b-0", "s-1", (), (), (), (), LINEAGE)
    bundles.put(conn, empty, "desk", "2026-01-31")
    assert bundles.get(conn, "b-0") == empty
    assert bundles.page(conn, "b-0", True) == []


def test_tasks_and_their_solutions(conn: Conn) -> None:
    params = {"zebra": 1, "ant": [2]}
    first = Task("k-1", "refund order 7", "helpdesk", params, (TOOL,), lineage=LINEAGE)
    second = dataclasses.replace(first, id="k-2", split="test", solver_stats={"pass": 0.25})
    assert tasks.put(conn, [first, second], "2026-01-31") == 2
    assert tasks.put(conn, [first], "2026-02-01") == 0
    assert tasks.get(conn, ["k-2", "k-1"]) == [second, first]
    assert list(tasks.get(conn, ["k-1"])[0].params) == ["zebra", "ant"]
    assert tasks.of_split(conn, "helpdesk", "test") == [second]
    tasks.set_solver_stats(conn, {"k-1": {"pass": 0.5}})
    assert tasks.get(conn, ["k-1"])[0].solver_stats == {"pass": 0.5}
    with pytest.raises(StoreError, match="first 'k-7'"):
        tasks.get(conn, ["k-1", "k-7"])
    solution = ReferenceSolution("k-1", (Message("assistant", "done"),))
    assert references.put(conn, [solution]) == 1
    assert references.put(conn, [solution]) == 0
    assert references.get(conn, ["k-1", "k-2"]) == {"k-1": solution}


def report(key: str) -> Report:
    scores = {"champion": {"k-1": (0.0, None)}, "challenger": {"k-1": (1.0, 1.0)}}
    paired = PairedStats(1, 2, 1.0, 0.5, 1.0, 0.01, 1, 0)
    return Report(key, "1", "2", scores, {"all": ("k-1",)}, paired, LINEAGE)


def test_reports(conn: Conn) -> None:
    reports.put(conn, report("r-1"), "desk", "2026-01-30")
    reports.put(conn, report("r-2"), "desk", "2026-01-31")
    reports.put(conn, report("r-2"), "desk", "2026-02-01")
    decision = Decision("r-2", False, (Criterion("gain", None, "too few cases"),))
    reports.decide(conn, decision)
    assert reports.get(conn, "r-2") == (report("r-2"), decision, "2026-01-31")
    assert reports.of_night(conn, "desk", "2026-01-30") == [(report("r-1"), None, "2026-01-30")]
    assert [item.report.id for item in reports.recent(conn, "desk")] == ["r-2", "r-1"]
    assert reports.get(conn, "r-7") is None
    with pytest.raises(StoreError, match="no report 'r-7'"):
        reports.decide(conn, dataclasses.replace(decision, report_id="r-7"))


def test_promotion_requests(conn: Conn, now: datetime) -> None:
    """One open request per agent: the second asker learns who was first."""
    wish = Wish("desk", "promote", "1", "2", "ann", "better on refunds")
    number = promotions.ask(conn, wish, now)
    with pytest.raises(Conflict, match="'ann' asked for a promote at 2026-01-31 02:00:00 UTC"):
        promotions.ask(conn, dataclasses.replace(wish, actor="bob"), now)
    promotions.ask(conn, dataclasses.replace(wish, agent="other"), now)
    asked = promotions.open_request(conn, "desk")
    assert asked is not None
    assert (asked.id, asked.status, asked.reason) == (number, "requested", "better on refunds")
    promotions.resolve(conn, number, "done", "champion is 2", now + timedelta(minutes=1))
    assert promotions.open_request(conn, "desk") is None
    with pytest.raises(StoreError, match="no open promotion request"):
        promotions.resolve(conn, number, "refused", "late", now)
    back = Wish("desk", "rollback", "2", None, "bob", "complaints")
    promotions.ask(conn, back, now)
    past = [(item.action, item.status, item.outcome) for item in promotions.recent(conn, "desk")]
    assert past == [("rollback", "requested", None), ("promote", "done", "champion is 2")]
    with pytest.raises(RecordError, match="needs an actor and a reason"):
        promotions.ask(conn, dataclasses.replace(back, agent="third", reason=" "), now)


def test_nights(conn: Conn, now: datetime) -> None:
    first = Night("2026-01-30", "desk", "done", now, "1", "2", {"success": 0.5}, now)
    second = Night("2026-01-31", "desk", "running", now, summary={})
    nights.put(conn, first)
    nights.put(conn, second)
    assert nights.recent(conn, "desk") == [second, first]
    finished = dataclasses.replace(second, status="failed", finished_at=now)
    nights.put(conn, finished)
    assert nights.get(conn, "desk", "2026-01-31") == finished
    assert nights.get(conn, "desk", "2026-02-01") is None
    assert nights.recent(conn, "desk", limit=1) == [finished]
    assert nights.recent(conn, "other") == []
    nights.put(conn, dataclasses.replace(second, agent="other"))
    assert nights.get(conn, "desk", "2026-01-31") == finished

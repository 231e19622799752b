"""Failure cases, people's decisions on them, and failure modes."""

import dataclasses
from datetime import datetime, timedelta

import pytest

from components.errors import Conflict, RecordError, StoreError
from components.records import Review
from store import cases, modes, reviews
from store.cases import CaseFilter
from store.db import Conn
from store.reviews import Change
from tests.store.records import case, mode

pytestmark = pytest.mark.postgres


def test_cases_come_back(conn: Conn) -> None:
    batch = [case("c-1"), case("c-2", "t-2", "m-1")]
    assert cases.put(conn, batch, "desk", "2026-01-31") == 2
    assert cases.put(conn, batch, "desk", "2026-01-31") == 0
    assert [item.case for item in cases.of_night(conn, "desk", "2026-01-31")] == batch
    assert [item.case for item in cases.get(conn, ["c-2", "c-1"])] == [batch[1], batch[0]]
    assert [item.case.id for item in cases.of_mode(conn, "m-1")] == ["c-2"]
    assert [item.case.id for item in cases.of_trajectory(conn, "t-1")] == ["c-1"]
    with pytest.raises(StoreError, match="first 'no'"):
        cases.get(conn, ["no"])


def test_decisions_win_over_later_runs(conn: Conn, now: datetime) -> None:
    """A person says: the environment's fault, mode m-9. A later run finds another mode; the person's stays."""
    cases.put(conn, [case(mode_id="m-1")], "desk", "2026-01-31")
    change = Change("ann", "known outage", "dismissed", "shop was down", "m-9", "environment")
    assert reviews.decide(conn, "c-1", 0, change, now) == 1
    found = dataclasses.replace(case(mode_id="m-2"), turn=0)
    assert cases.put(conn, [found], "desk", "2026-02-01") == 1
    ((stored, version, night, _),) = cases.get(conn, ["c-1"])
    assert (version, night, stored.turn) == (1, "2026-01-31", 0)
    assert (stored.summary, stored.mode_id, stored.fault) == (
        "shop was down",
        "m-9",
        "environment",
    )
    assert stored.review == Review("dismissed", "ann", now, "known outage")


def test_second_decision_on_the_same_sight_is_refused(conn: Conn, now: datetime) -> None:
    cases.put(conn, [case()], "desk", "2026-01-31")
    reviews.decide(conn, "c-1", 0, Change("ann", verdict="confirmed"), now)
    with pytest.raises(
        Conflict,
        match="'ann' decided on case 'c-1' meanwhile, at 2026-01-31 02:00:00 UTC: verdict 'confirmed'",
    ):
        reviews.decide(conn, "c-1", 0, Change("bob", verdict="dismissed"), now)
    assert reviews.decide(conn, "c-1", 1, Change("bob", verdict="dismissed"), now) == 2
    past = [
        (item.version, item.change.actor, item.change.verdict)
        for item in reviews.history(conn, "c-1")
    ]
    assert past == [(1, "ann", "confirmed"), (2, "bob", "dismissed")]


def test_decisions_as_they_stood(conn: Conn, now: datetime) -> None:
    """Decisions at 02:00 and 04:00; at the cut-off of 03:00 only the first stands."""
    cases.put(conn, [case(), case("c-2")], "desk", "2026-01-31")
    reviews.decide(conn, "c-1", 0, Change("ann", summary="first words"), now)
    reviews.decide(conn, "c-1", 1, Change("bob", verdict="dismissed"), now + timedelta(hours=2))
    before, at_three, after = (
        cases.as_of(conn, "desk", now + timedelta(hours=hours)) for hours in (-1, 1, 3)
    )
    assert before == [case(), case("c-2")]
    assert at_three[0] == dataclasses.replace(case(), summary="first words")
    assert after[0].summary == "first words"
    assert after[0].review == Review("dismissed", "bob", now + timedelta(hours=2))
    assert after[1] == case("c-2")
    assert cases.as_of(conn, "other", now) == []
    assert len(cases.as_of(conn, "desk", now, "2026-01-31")) == 2


def test_empty_decisions_are_refused(conn: Conn, now: datetime) -> None:
    cases.put(conn, [case()], "desk", "2026-01-31")
    with pytest.raises(RecordError, match="at least one change"):
        reviews.decide(conn, "c-1", 0, Change("ann", "just looking"), now)
    with pytest.raises(RecordError, match="needs an actor"):
        reviews.decide(conn, "c-1", 0, Change(" ", verdict="confirmed"), now)
    with pytest.raises(StoreError, match="no failure case 'c-7'"):
        reviews.decide(conn, "c-7", 0, Change("ann", verdict="confirmed"), now)


def test_queue_filters_and_counts(conn: Conn, now: datetime) -> None:
    """Four cases: two of mode m-1 (one of them confirmed), one of m-2, one without."""
    batch = [
        case("c-1", mode_id="m-1"),
        case("c-2", mode_id="m-1"),
        case("c-3", mode_id="m-2"),
        case("c-4"),
    ]
    cases.put(conn, batch, "desk", "2026-01-31")
    reviews.decide(conn, "c-2", 0, Change("ann", verdict="confirmed"), now)
    everything = CaseFilter(agent="desk")
    assert cases.count(conn, everything) == 4
    assert cases.counts_by(conn, "mode_id", everything) == {"m-1": 2, "m-2": 1, None: 1}
    assert cases.counts_by(conn, "verdict", everything) == {None: 3, "confirmed": 1}
    open_ones = CaseFilter(agent="desk", verdict="open", mode_id="m-1")
    assert [item.case.id for item in cases.page(conn, open_ones)] == ["c-1"]
    assert [item.case.id for item in cases.page(conn, CaseFilter(verdict="confirmed"))] == ["c-2"]
    assert [item.case.id for item in cases.page(conn, everything, 2, 2)] == ["c-3", "c-4"]
    assert cases.count(conn, CaseFilter(fault="environment")) == 0
    assert cases.count(conn, CaseFilter(kind="wrong_tool", night="2026-01-31")) == 4


def test_modes_gather_counts_over_nights(conn: Conn) -> None:
    modes.put(conn, [mode(n2026_01_30=3)], "desk")
    again = dataclasses.replace(mode(n2026_01_31=5), status="growing")
    modes.put(conn, [again, mode("m-2")], "desk")
    first, second = modes.of_agent(conn, "desk")
    assert first == dataclasses.replace(again, counts={"2026-01-30": 3, "2026-01-31": 5})
    assert second == mode("m-2")
    modes.put(conn, [dataclasses.replace(again, embedding=None)], "desk")
    assert modes.get(conn, "m-1") == dataclasses.replace(first, embedding=None)
    assert modes.get(conn, "absent") is None
    assert modes.of_agent(conn, "other") == []


def test_name_given_by_a_person_sticks(conn: Conn, now: datetime) -> None:
    modes.put(conn, [mode()], "desk")
    modes.rename(conn, "m-1", modes.version(conn, "m-1"), " Refunds cancelled ", "ann", now)
    modes.put(conn, [mode(name="found again")], "desk")
    assert modes.of_agent(conn, "desk")[0].name == "Refunds cancelled"
    with pytest.raises(
        Conflict, match="'ann' renamed mode 'found again' to 'Refunds cancelled' meanwhile"
    ):
        modes.rename(conn, "m-1", 0, "Mine", "bob", now)
    with pytest.raises(RecordError, match="needs a name"):
        modes.rename(conn, "m-1", 1, " ", "bob", now)
    with pytest.raises(StoreError, match="no failure mode 'm-7'"):
        modes.rename(conn, "m-7", 0, "Mine", "bob", now)


def test_what_was_decided_between_two_nights(conn: Conn, now: datetime) -> None:
    """c-1 twice inside the span: the later verdict counts. c-2 after it, c-3 without a verdict, c-4 of another agent."""
    batch = [case(key, f"t-{key[-1]}") for key in ("c-1", "c-2", "c-3")]
    cases.put(conn, batch, "desk", "2026-01-31")
    cases.put(conn, [case("c-4", "t-4")], "other", "2026-01-31")
    hour = timedelta(hours=1)
    reviews.decide(conn, "c-1", 0, Change("ann", "", "confirmed"), now + hour)
    reviews.decide(
        conn, "c-1", 1, Change("bert", "outage", "dismissed", "shop down"), now + 2 * hour
    )
    reviews.decide(conn, "c-2", 0, Change("ann", "", "confirmed"), now + 4 * hour)
    reviews.decide(conn, "c-3", 0, Change("ann", "", fault="task"), now + hour)
    reviews.decide(conn, "c-4", 0, Change("ann", "", "confirmed"), now + hour)
    found = reviews.between(conn, "desk", now, now + 3 * hour)
    wanted = ("c-1", "t-1", "shop down", "dismissed", "bert", "outage", now + 2 * hour)
    assert [dataclasses.astuple(item) for item in found] == [wanted]
    assert reviews.between(conn, "desk", now + 2 * hour, now + 3 * hour) == []
    later = reviews.between(conn, "desk", now, now + 4 * hour)
    assert [item.case_id for item in later] == ["c-2", "c-1"]
    assert len(reviews.between(conn, "desk", now, now + 4 * hour, limit=1)) == 1

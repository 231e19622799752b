"""Deciding cases: one click each, the next one opens, nobody overwrites anybody, and the next night obeys."""

import dataclasses
from datetime import UTC, datetime

import pytest
from streamlit.testing.v1 import AppTest

from components.records import FailureCase, ReviewVerdict, Split
from store import cases, modes, nights, reviews
from store.cases import CaseFilter, StoredCase
from store.reviews import Change
from tests.store.records import case
from tests.ui.conftest import Desk, words_of
from tests.ui.desk_logs import AGENT
from ui.decisions import effect

NOW = datetime(2026, 3, 15, 8, tzinfo=UTC)


def first_open(desk: Desk) -> list[StoredCase]:
    with desk.db.connect() as conn:
        return cases.page(conn, CaseFilter(agent=AGENT, verdict="open"), 2)


def stored(desk: Desk, id: str) -> StoredCase:
    with desk.db.connect() as conn:
        return cases.get(conn, [id])[0]


def press(app: AppTest, verdict: str, seen: StoredCase) -> AppTest:
    return app.button(key=f"{verdict} {seen.case.id} {seen.version}").click().run()


@pytest.mark.postgres
@pytest.mark.parametrize("verdict", ["confirmed", "dismissed"])
def test_one_click_decides_the_open_case_and_opens_the_next(desk: Desk, verdict: str) -> None:
    now, following = first_open(desk)
    app = desk.open("failures")
    app.text_input(key="actor").set_value("cleo").run()
    app.text_input(key="note").set_value("seen it before").run()
    press(app, verdict, now)
    assert not app.exception
    review = stored(desk, now.case.id).case.review
    assert review is not None
    assert (review.verdict, review.actor, review.reason) == (verdict, "cleo", "seen it before")
    told = app.success[0].value
    assert "Tonight's data will" in told
    assert ("leave this trajectory out" in told) == (verdict == "dismissed")
    assert app.button(key=f"{verdict} {following.case.id} {following.version}")
    assert app.text_input(key="note").value == ""


@pytest.mark.postgres
def test_who_comes_second_is_told_who_was_first(desk: Desk) -> None:
    now, _ = first_open(desk)
    app = desk.open("failures")
    with desk.db.connect() as conn:
        change = Change("dora", "the shop was closed", "dismissed")
        reviews.decide(conn, now.case.id, now.version, change, NOW)
    press(app, "confirmed", now)
    assert not app.exception
    assert "dora was first: dismissed" in app.warning[0].value.replace("\\", "")
    assert "the shop was closed" in app.warning[0].value
    fresh = stored(desk, now.case.id)
    assert fresh.case.review is not None
    assert fresh.case.review.verdict == "dismissed"
    assert app.button(key=f"dismissed {now.case.id} {fresh.version}").disabled
    press(app, "confirmed", fresh)
    review = stored(desk, now.case.id).case.review
    assert review is not None
    assert review.verdict == "confirmed"


@pytest.mark.postgres
def test_nobody_decides_without_a_name(desk: Desk) -> None:
    now, _ = first_open(desk)
    app = desk.open("failures")
    app.text_input(key="actor").set_value("  ").run()
    press(app, "confirmed", now)
    assert "enter your name" in app.warning[0].value
    assert stored(desk, now.case.id).version == now.version


@pytest.mark.postgres
def test_who_is_signed_in_decides_under_that_name(desk: Desk) -> None:
    now, _ = first_open(desk)
    press(desk.open("failures", user="eve@example.com"), "confirmed", now)
    review = stored(desk, now.case.id).case.review
    assert review is not None
    assert review.actor == "eve@example.com"


@pytest.mark.postgres
def test_a_case_moves_to_another_mode_and_fault(desk: Desk) -> None:
    now, _ = first_open(desk)
    with desk.db.connect() as conn:
        other = next(m for m in modes.of_agent(conn, AGENT) if m.id != now.case.mode_id)
    app = desk.open("failures")
    version = f"{now.case.id} {now.version}"
    assert app.button(key=f"save {version}").disabled
    app.selectbox(key=f"new mode {version}").set_value(other.id)
    app.selectbox(key=f"new fault {version}").set_value("infrastructure").run()
    app.button(key=f"save {version}").click().run()
    assert not app.exception
    after = stored(desk, now.case.id).case
    assert (after.mode_id, after.fault) == (other.id, "infrastructure")
    assert after.review is None


@pytest.mark.postgres
def test_a_mode_gets_a_name(desk: Desk) -> None:
    now, _ = first_open(desk)
    app = desk.open("failures")
    mode = now.case.mode_id
    app.text_input(key=f"name {mode} 0").set_value("Our own *name*").run()
    app.button(key=f"rename {mode} 0").click().run()
    assert not app.exception
    with desk.db.connect() as conn:
        found = modes.get(conn, mode or "")
    assert found is not None
    assert found.name == "Our own *name*"


@pytest.mark.postgres
def test_a_night_that_runs_does_not_see_the_decision(desk: Desk) -> None:
    with desk.db.connect() as conn:
        nights.put(conn, nights.Night("2026-03-15", AGENT, "running", NOW))
    now, _ = first_open(desk)
    app = press(desk.open("failures"), "dismissed", now)
    assert "counts in the night after" in app.success[0].value


@pytest.mark.postgres
def test_the_data_page_shows_what_last_nights_decisions_changed(desk: Desk) -> None:
    """Six cases of the night before were decided in the morning; those dismissed are out of the data now."""
    with desk.db.connect() as conn:
        begun, ended = (nights.get(conn, AGENT, f"2026-03-{day}") for day in (13, 14))
        assert begun is not None
        assert ended is not None
        decided = reviews.between(conn, AGENT, begun.started_at, ended.started_at)
    dismissed = sum(item.verdict == "dismissed" for item in decided)
    assert dismissed
    app = desk.open("data")
    assert {item.label: item.value for item in app.metric}["Cases decided"] == "6"
    text = words_of(app)
    assert "left out: its failure case was dismissed in review" in text
    assert {item.label: item.value for item in app.metric}["Taken out of the data"] == str(
        dismissed
    )
    app.button(key="open decided").click().run()
    assert app.title[0].value == "Failures"


@pytest.mark.parametrize(
    ("verdict", "fault", "split", "told"),
    [
        ("dismissed", "model", "train", "will leave this trajectory out"),
        ("confirmed", "model", "train", "will keep this trajectory"),
        ("confirmed", "infrastructure", "train", "leaves this trajectory out all the same"),
        ("dismissed", "model", "test", "stays as it is"),
        ("confirmed", "model", None, "stays as it is"),
    ],
)
def test_what_a_verdict_changes(
    verdict: ReviewVerdict, fault: str, split: Split | None, told: str
) -> None:
    """As curation has it: only the training split, never an infrastructure fault, nothing dismissed."""
    known: FailureCase = dataclasses.replace(case(), fault=fault)  # type: ignore[arg-type]
    assert told in effect(verdict, known, split)

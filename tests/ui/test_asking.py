"""Promotion is asked for with a reason, one request at a time; memory goes back with a reason."""

import pytest

from store import memory, promotions
from store.promotions import Wish
from tests.ui.conftest import Desk, words_of
from tests.ui.desk_logs import AGENT
from ui import session

pytestmark = pytest.mark.postgres


def test_the_promotion_page_shows_the_evidence(desk: Desk) -> None:
    text = words_of(desk.open("promotion"))
    for told in (
        "60 tasks",
        "no harm",
        "not forgotten",
        "SFT only",
        "parent",
        "version 11",
        "60.0% to",
    ):
        assert told in text, told


@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_asking_needs_a_reason_and_moves_nothing(desk: Desk, action: str) -> None:
    app = desk.open("promotion")
    app.button(key=f"ask {action}").click().run()
    assert "needs a reason" in app.warning[0].value
    app.text_input(key="actor").set_value("cleo")
    app.text_input(key=f"{action} reason").set_value("better everywhere")
    app.button(key=f"ask {action}").click().run()
    assert not app.exception
    with desk.db.connect() as conn:
        request = promotions.open_request(conn, AGENT)
    assert request is not None
    assert (request.action, request.actor, request.reason) == (action, "cleo", "better everywhere")
    assert request.from_version == "11"
    assert request.to_version == ("13" if action == "promote" else None)
    assert "not carried out yet" in app.warning[0].value
    assert app.button(key="ask promote").disabled
    assert app.button(key="ask rollback").disabled
    assert "Champion: version 11" in words_of(app)


def test_a_second_request_is_refused_with_who_was_first(desk: Desk) -> None:
    app = desk.open("promotion")
    app.text_input(key="promote reason").set_value("better")
    with desk.db.connect() as conn:
        promotions.ask(conn, Wish(AGENT, "rollback", "11", None, "dora", "worse"), session.now())
    app.button(key="ask promote").click().run()
    assert not app.exception
    assert "dora" in app.warning[0].value


def test_memory_goes_back_with_a_reason(desk: Desk) -> None:
    with desk.db.connect() as conn:
        head = memory.head(conn, AGENT)
        wanted = {(entry.id, entry.version) for entry in memory.bank(conn, AGENT, 3)}
    app = desk.open("memory")
    app.button_group[0].set_value("Revisions").run()
    app.button(key="revisions row 3").click().run()
    app.button(key=f"rollback 3 {head}").click().run()
    assert "needs a reason" in app.warning[0].value
    app.text_input(key="rollback reason").set_value("a wrong lesson")
    app.button(key=f"rollback 3 {head}").click().run()
    assert not app.exception
    with desk.db.connect() as conn:
        last = memory.revisions(conn, AGENT, 1)[0]
        held = {(entry.id, entry.version) for entry in memory.bank(conn, AGENT)}
    assert (last.revision, last.restores, last.reason) == (head + 1, 3, "a wrong lesson")
    assert held == wanted
    assert f"Revision {head + 1} serves" in words_of(app)


def test_memory_that_moved_on_is_not_rolled_back(desk: Desk) -> None:
    app = desk.open("memory")
    app.button_group[0].set_value("Revisions").run()
    app.button(key="revisions row 3").click().run()
    with desk.db.connect() as conn:
        head = memory.head(conn, AGENT)
        memory.rollback(conn, AGENT, 5, "dora", "meanwhile", session.now())
    app.text_input(key="rollback reason").set_value("mine")
    app.button(key=f"rollback 3 {head}").click().run()
    with desk.db.connect() as conn:
        assert memory.head(conn, AGENT) == head + 1
    assert "moved on meanwhile" in app.warning[0].value


def test_a_lesson_leads_to_its_conversation(desk: Desk) -> None:
    app = desk.open("memory")
    source = next(b for b in app.button if b.key and b.key.startswith("source "))
    source.click().run()
    assert app.title[0].value == "Trajectories"
    assert str(source.key).rsplit(" ", 1)[1] in words_of(app)

"""Every page opens on the fortnight and on an empty store, and says what it should."""

import re
from datetime import UTC, datetime

import pytest

from store import cases, nights, promotions
from store.cases import CaseFilter
from tests.ui.conftest import Desk, words_of
from tests.ui.desk_logs import AGENT

pytestmark = pytest.mark.postgres

NOW = datetime(2026, 3, 15, 8, 0, tzinfo=UTC)
PAGES = ("overview", "failures", "trajectories", "data", "memory", "promotion")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_on_a_fortnight(desk: Desk, page: str) -> None:
    app = desk.open(page)
    assert not app.exception
    assert not app.error
    assert not app.warning
    assert app.title


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_on_nothing(empty_desk: Desk, page: str) -> None:
    app = empty_desk.open(page)
    assert not app.exception
    assert not app.error


def test_the_first_morning_names_the_two_commands(empty_desk: Desk) -> None:
    app = empty_desk.open()
    assert app.code[0].value == "nightshift day\nnightshift night"


def test_the_overview_says_what_the_last_night_did_and_what_waits(desk: Desk) -> None:
    with desk.db.connect() as conn:
        last = nights.recent(conn, AGENT, 1)[0]
        waiting = cases.count(conn, CaseFilter(agent=AGENT, verdict="open"))
    app = desk.open()
    assert app.title[0].value == "Night 2026\\-03\\-14"
    assert any(f"{waiting} failures to review" in item.value for item in app.markdown)
    assert any(f"Version {last.challenger_version} waits" in item.value for item in app.markdown)
    figures = {item.label: item.value for item in app.metric}
    assert last.summary is not None
    assert figures["Failures found"] == str(last.summary["counts"]["cases"])
    assert figures["Against the champion"].startswith("+")


def test_a_promoted_challenger_waits_no_longer(desk: Desk) -> None:
    with desk.db.connect() as conn:
        last = nights.recent(conn, AGENT, 1)[0]
        assert last.challenger_version is not None
        wish = promotions.Wish(
            AGENT, "promote", last.champion_version, last.challenger_version, "ann", "better"
        )
        request = promotions.ask(conn, wish, NOW)
        promotions.resolve(conn, request, "done", "is the champion", NOW)
    app = desk.open()
    wanted = f"Version {last.challenger_version} was promoted"
    assert any(wanted in item.value for item in app.markdown)


def test_promotion_shows_where_failures_went(desk: Desk) -> None:
    """Of the champion's wrong tools of `seed_figures.CONFUSION` 31 are solved now."""
    shown = words_of(desk.open("promotion"))
    assert "How the same tasks ended" in shown
    row = shown.partition("wrong tool</td>")[2].partition("</tr>")[0]
    assert [int(n) for n in re.findall(r">(\d+)<", row)] == [31, 12, 2]


def test_a_failed_night_says_so(desk: Desk) -> None:
    with desk.db.connect() as conn:
        conn.execute("delete from night where night > '2026-03-06'")
    app = desk.open()
    assert any("✕ failed" in item.value for item in app.caption)
    assert "Some stages failed" in app.warning[0].value


@pytest.mark.parametrize("part", ["Kept", "Left out", "Strategy"])
def test_the_parts_of_the_data(desk: Desk, part: str) -> None:
    app = desk.open("data")
    app.button_group(key="part").set_value(part).run()
    assert not app.exception
    assert {"Kept": "learnt", "Left out": "dismissed in review", "Strategy": "def curate"}[
        part
    ] in words_of(app)


def test_a_strategy_shows_what_it_changed(desk: Desk) -> None:
    app = desk.open("data")
    app.button_group(key="part").set_value("Strategy").run()
    assert app.code[0].language == "diff"
    assert any(line.startswith("+") for line in app.code[0].value.splitlines()[2:])


def test_pages_of_a_list_are_turned(desk: Desk) -> None:
    app = desk.open("trajectories")
    first = [
        item.key for item in app.button if item.key and item.key.startswith("trajectories row")
    ]
    app.button(key="trajectories on").click().run()
    second = [
        item.key for item in app.button if item.key and item.key.startswith("trajectories row")
    ]
    assert len(first) == len(second) == 12
    assert not set(first) & set(second)
    assert any("13 to 24 of 448" in item.value for item in app.caption)


def test_a_link_opens_a_case(desk: Desk) -> None:
    with desk.db.connect() as conn:
        case = cases.of_night(conn, AGENT, "2026-03-02")[0].case
    app = desk.open("failures", case=case.id)
    assert case.trajectory_id in words_of(app)


def test_another_filter_opens_the_first_of_its_own_list(desk: Desk) -> None:
    with desk.db.connect() as conn:
        wanted = cases.page(conn, CaseFilter(agent=AGENT, verdict="dismissed"), 1)[0].case
    app = desk.open("failures")
    rows = [item.key for item in app.button if item.key and item.key.startswith("failures row")]
    app.button(key=rows[3]).click().run()
    app.button_group(key="state").set_value("Dismissed").run()
    assert app.button(key=f"confirmed {wanted.id} 1")

"""Night ids over a scripted sequence of days."""

from datetime import date

import pytest

from components.errors import ConfigError
from flows.nights import check_night, tonight

MONDAY = date(2026, 11, 30)


def test_the_first_night_is_today() -> None:
    assert tonight(MONDAY, None, False, True) == "2026-11-30"


def test_a_finished_night_stays_until_new_logs_arrive() -> None:
    assert tonight(MONDAY, "2026-11-30", True, False) == "2026-11-30"
    assert tonight(MONDAY, "2026-11-30", True, True) == "2026-11-30.2"
    assert tonight(MONDAY, "2026-11-30.2", True, True) == "2026-11-30.3"


def test_an_unfinished_night_is_still_tonight_even_a_day_later() -> None:
    assert tonight(MONDAY, "2026-11-30", False, True) == "2026-11-30"
    assert tonight(date(2026, 12, 1), "2026-11-30", False, True) == "2026-11-30"


def test_a_new_date_is_a_new_night() -> None:
    assert tonight(date(2026, 12, 1), "2026-11-30.2", True, True) == "2026-12-01"


def test_ids_sort_in_time_order() -> None:
    ids = ["2026-11-30", "2026-11-30.2", "2026-11-30.9", "2026-12-01"]
    assert ids == sorted(ids)


def test_the_tenth_night_of_a_date_and_a_bad_id_are_refused() -> None:
    with pytest.raises(ConfigError, match="ninth"):
        tonight(MONDAY, "2026-11-30.9", True, True)
    with pytest.raises(ConfigError, match="YYYY-MM-DD"):
        check_night("yesterday")
    with pytest.raises(ValueError, match="day"):
        check_night("2026-02-30")

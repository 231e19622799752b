"""The schedule over both changes of the clock, and the night that a late or repeated start means.

Expected instants: Berlin is at UTC+1 in winter and UTC+2 in summer, and changes at 01:00 UTC on 29 March and
25 October 2026. 02:30 does not exist on 29 March, when the night runs an hour later by the wall clock; it comes twice on
25 October, when the night runs at the first.
"""

import asyncio
import os
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import construct_schedule
from prefect.schedules import Cron
from prefect.server.schemas.schedules import CronSchedule

from flows.nights import logical_date, tonight
from flows.orphans import end_orphaned_servers
from flows.scheduler import prefect_server

BERLIN = "Europe/Berlin"
SPRING = [
    datetime(2026, 3, 28, 1, 30, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
]
AUTUMN = [
    datetime(2026, 10, 24, 0, 30, tzinfo=UTC),
    datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
]


def starts(cron: str, timezone: str, start: datetime, end: datetime) -> list[datetime]:
    """When the scheduler starts a night, by what `nightshift schedule` gives it."""
    given = Cron(cron, timezone=timezone)
    assert given.cron is not None
    plan = CronSchedule(cron=given.cron, timezone=given.timezone)
    found = asyncio.run(plan.get_dates(100, start=start, end=end))
    return [moment.astimezone(UTC) for moment in found]


@pytest.mark.parametrize("expected", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_one_night_per_local_day_over_a_change_of_the_clock(expected: list[datetime]) -> None:
    first = expected[0].replace(hour=0, minute=0)
    found = starts("30 2 * * *", BERLIN, first, first + timedelta(days=3))
    assert found == expected
    days = [logical_date(moment, BERLIN) for moment in found]
    assert days == [expected[0].date() + timedelta(days=place) for place in range(3)]


def test_a_whole_year_has_one_night_per_day() -> None:
    found = starts(
        "30 2 * * *",
        BERLIN,
        datetime(2026, 3, 1, tzinfo=UTC),
        datetime(2026, 4, 30, 12, tzinfo=UTC),
    )
    days = [logical_date(moment, BERLIN) for moment in found]
    assert days == [date(2026, 3, 1) + timedelta(days=place) for place in range(61)]


@pytest.mark.parametrize(
    ("expected", "first"),
    [
        (["2025-10-25T00:30", "2025-10-26T00:30", "2025-10-27T01:30"], datetime(2025, 10, 25)),
        (["2025-03-29T01:30", "2025-03-30T01:30", "2025-03-31T00:30"], datetime(2025, 3, 29)),
    ],
)
def test_the_case_of_london(expected: list[str], first: datetime) -> None:
    start = first.replace(tzinfo=UTC)
    found = starts("30 1 * * *", "Europe/London", start, start + timedelta(days=3, seconds=-1))
    assert [f"{moment:%Y-%m-%dT%H:%M}" for moment in found] == expected


def test_a_scheduler_that_restarts_between_both_half_past_twos_starts_no_second_night() -> None:
    """On 25 October the first 02:30 is at 00:30 UTC and the second at 01:30 UTC."""
    restarted = datetime(2026, 10, 25, 0, 45, tzinfo=UTC)
    found = starts("30 2 * * *", BERLIN, restarted, restarted + timedelta(days=1, hours=1))
    assert [logical_date(moment, BERLIN) for moment in found] == [date(2026, 10, 26)]


def test_a_second_start_on_the_same_local_day_means_the_night_that_is_done() -> None:
    once, again = (
        logical_date(moment, BERLIN) for moment in (AUTUMN[1], AUTUMN[1] + timedelta(hours=1))
    )
    assert tonight(once, "2026-10-24", True, True) == "2026-10-25"
    assert tonight(again, "2026-10-25", True, False) == "2026-10-25"


def test_the_date_is_that_of_the_schedules_time_zone() -> None:
    """02:30 in Tokyo is 17:30 UTC of the day before; 02:30 in Los Angeles is 10:30 UTC of the same day."""
    assert logical_date(datetime(2026, 11, 29, 17, 30, tzinfo=UTC), "Asia/Tokyo") == date(
        2026, 11, 30
    )
    assert logical_date(datetime(2026, 11, 30, 10, 30, tzinfo=UTC), "America/Los_Angeles") == date(
        2026, 11, 30
    )


def test_a_late_start_takes_up_the_night_that_was_left_or_begins_that_of_its_own_day() -> None:
    """The machine was off at 02:30 and starts at noon, after one night that finished and after one that did not."""
    noon = logical_date(datetime(2026, 11, 30, 11, 0, tzinfo=UTC), BERLIN)
    assert tonight(noon, "2026-11-29", True, True) == "2026-11-30"
    assert tonight(noon, "2026-11-28", True, True) == "2026-11-30"
    assert tonight(noon, "2026-11-29", False, True) == "2026-11-29"


def test_a_server_that_schedules_lives_as_long_as_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary server of a single night answers too, but starts no scheduler: nights would never come."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with prefect_server() as url:
        assert os.environ["PREFECT_API_URL"] == url
        assert planned_nights(url) > 0
        assert end_orphaned_servers(str(tmp_path)) == 0
    assert "PREFECT_API_URL" not in os.environ
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health")


def planned_nights(url: str) -> int:
    """Runs that the server planned for a deployment with a cron line, within half a minute.

    Asked by Prefect's own client, as `nightshift schedule` does: the server answers 503 where two of its writers meet,
    and the client asks again.
    """
    with SyncPrefectClient(url) as client:
        flow = client.create_flow_from_name("nightly")
        cron = construct_schedule(cron="0 2 * * *", timezone=BERLIN)
        client.create_deployment(
            flow, "nightly-desk", schedules=[DeploymentScheduleCreate(schedule=cron)]
        )
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if found := len(client.read_flow_runs()):
                return found
            time.sleep(0.2)
    return 0


def test_the_users_own_server_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.internal:4200/api")
    with prefect_server() as url:
        assert url == "http://prefect.internal:4200/api"
    assert os.environ["PREFECT_API_URL"] == url

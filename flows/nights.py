"""Which night is meant: a logical date in the schedule's time zone, and a second or third night of the same date when more logs came in.

`2026-11-30`, then `2026-11-30.2`, then `2026-11-30.3`: ids sort in time order. A night that did not finish is tonight
still; a finished night stays tonight until new log bytes arrive, so running it again changes nothing.
"""

import re
from datetime import date, datetime
from zoneinfo import ZoneInfo

from components.errors import ConfigError

NIGHT_ID = re.compile(r"\d{4}-\d{2}-\d{2}(\.[2-9])?")


def logical_date(now: datetime, timezone: str) -> date:
    """The local date at a moment: a clock that jumps in the night gives every day one night all the same."""
    return now.astimezone(ZoneInfo(timezone)).date()


def check_night(text: str) -> str:
    """A night id given by a person, checked."""
    if not NIGHT_ID.fullmatch(text):
        raise ConfigError(f"night {text!r} is not a date: expected YYYY-MM-DD or YYYY-MM-DD.2")
    date.fromisoformat(text[:10])
    return text


def tonight(today: date, last: str | None, last_finished: bool, new_logs: bool) -> str:
    """The id of the night to run now.

    `last`: the newest night of the agent, None before the first one.
    """
    if last is None or last[:10] < today.isoformat():
        return last if last is not None and not last_finished else today.isoformat()
    if not last_finished or not new_logs:
        return last
    day, _, number = last.partition(".")
    following = int(number or 1) + 1
    if following > 9:
        raise ConfigError(f"night {last!r} was the ninth of that date; give --date explicitly")
    return f"{day}.{following}"

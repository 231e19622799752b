"""How values look on a page: numbers, times, differences, and text that is not to be trusted.

Text from a log is data. `visible` shows what a reader could not see (control and direction characters), `escape` makes
it fit for HTML, `label` for the places where Streamlit reads Markdown. None is shown as an en dash: "not known" is never
shown as zero.
"""

import difflib
import html
import json
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

UNKNOWN = "–"
VERDICTS = {"open": "○ open", "confirmed": "✓ confirmed", "dismissed": "✕ dismissed"}
OUTCOMES = {True: "✓ succeeded", False: "✕ failed", None: "? not known"}
MODE_STATUS = {
    "new": "+ new",
    "growing": "↑ growing",
    "recurring": "↻ recurring",
    "mitigated": "↓ mitigated",
    "fixed": "✓ fixed",
    "regressed": "! regressed",
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:^&])")
_KEPT = "\n\t\u200c\u200d"
"""Line breaks, and the joiners that Persian words and composed emoji need."""


def count(number: int | None) -> str:
    """`12345` as `12,345`."""
    return UNKNOWN if number is None else f"{number:,}"


def plural(number: int, noun: str, several: str | None = None) -> str:
    """`3 cases`, `1 case`."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def percent(rate: float | None) -> str:
    """A fraction as `61.5%`."""
    return UNKNOWN if rate is None else f"{100 * rate:.1f}%"


def points(difference: float | None) -> str:
    """A difference of two fractions as `+12.0 points`, with a true minus sign."""
    if difference is None:
        return UNKNOWN
    sign = "+" if difference > 0 else "−" if difference < 0 else "±"
    return f"{sign}{abs(100 * difference):.1f} points"


def interval(low: float | None, high: float | None) -> str:
    """An interval of fractions as `56.1% to 66.9%`."""
    return UNKNOWN if low is None or high is None else f"{percent(low)} to {percent(high)}"


def number(value: float | None, digits: int = 3) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}g}"


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `3 min 05 s`, `1 h 02 min`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def moment(at: datetime | None) -> str:
    """A time in UTC, to the minute."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return UNKNOWN
    value = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def words(name: str) -> str:
    """An identifier in words: `wrong_tool` as `wrong tool`."""
    return name.replace("_", " ")


def signature(text: str) -> str:
    """`wrong_tool|refund_order|issued cancel_order` as `wrong tool · refund_order · issued cancel_order`."""
    kind, *rest = visible(text).split("|")
    return " · ".join([words(kind), *(part for part in rest if part)])


def visible(text: str) -> str:
    """The text with every control and direction character written out, so that nothing hides or reorders it."""
    return "".join(char if _is_plain(char) else f"⟨U+{ord(char):04X}⟩" for char in text)


def _is_plain(char: str) -> bool:
    return char in _KEPT or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def escape(text: str) -> str:
    """The text as HTML text or attribute value."""
    return html.escape(visible(text), quote=True)


def label(text: str) -> str:
    """The text for a Streamlit label or Markdown body, every mark escaped and on one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(visible(text).split()))


def gist(text: str, limit: int = 80) -> str:
    """The beginning of the text on one line."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


class Cut(NamedTuple):
    text: str
    num_hidden: int
    """Characters left out; 0 when the text is whole."""


def cut(text: str, limit: int | None) -> Cut:
    """The first `limit` characters; None keeps all."""
    if limit is None or len(text) <= limit:
        return Cut(text, 0)
    return Cut(text[:limit], len(text) - limit)


def pretty_json(raw: str) -> str:
    """JSON indented for reading; text that is not JSON as it stands."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(value, dict | list):
        return raw
    flat = json.dumps(value, ensure_ascii=False)
    return flat if len(flat) <= 60 else json.dumps(value, indent=2, ensure_ascii=False)


def diff(before: str, after: str, names: tuple[str, str]) -> str:
    """What changed between two program texts, as a unified diff; empty when nothing did."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="", n=3)
    return "\n".join(lines)


def listed(items: Sequence[str], limit: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(items[:limit])
    rest = len(items) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown or UNKNOWN

"""Small tables and fact lists as HTML; every value is escaped here, so callers pass plain text.

Streamlit's own grid draws on a canvas, which suits long pages; these suit a handful of rows that must be read aloud,
copied and printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ui import format as fmt


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    kind: Literal["text", "number", "short"] = "text"
    """Numbers are set right; short text does not wrap."""


_CSS = {"text": "", "number": ' class="ns-num"', "short": ' class="ns-nowrap"'}


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text. `caption` names it for a screen reader."""
    head = "".join(
        f'<th scope="col"{_CSS[column.kind]}>{fmt.escape(column.title)}</th>' for column in columns
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_CSS[column.kind]}>{fmt.escape(value)}</td>"
            for column, value in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="ns-scroll"><table class="ns-table" aria-label="{fmt.escape(caption)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line."""
    body = "".join(
        f"<dt>{fmt.escape(name)}</dt><dd>{fmt.escape(value)}</dd>" for name, value in pairs
    )
    return f'<dl class="ns-facts">{body}</dl>'


def passage(text: str, num_hidden: int = 0) -> str:
    """Text of several lines as it stands."""
    rest = f'<span class="ns-cut">… {num_hidden:,} more characters</span>' if num_hidden else ""
    return f'<div class="ns-talk"><pre class="ns-passage">{fmt.escape(text)}{rest}</pre></div>'


def difference(lines: Sequence[str]) -> str:
    """Lines of a unified diff, told apart by sign and tint."""
    kinds = {"+": "ns-plus", "-": "ns-minus", "@": "ns-hunk"}
    body = "".join(
        f'<span class="ns-line {kinds.get(line[:1], "")}">{fmt.escape(line)}\n</span>'
        for line in lines
    )
    return f'<div class="ns-talk"><pre class="ns-diff">{body}</pre></div>'


def checks(items: Sequence[tuple[bool | None, str, str]]) -> str:
    """Criteria: passed or not (None = not judged), name, reason."""
    marks = {True: ("✓", "met"), False: ("✕", "not met"), None: ("?", "not judged")}
    body = "".join(
        f'<li class="ns-check ns-{marks[passed][1].replace(" ", "-")}">'
        f'<span class="ns-sign" aria-label="{marks[passed][1]}">{marks[passed][0]}</span>'
        f"<div><b>{fmt.escape(name)}</b><br>{fmt.escape(reason)}</div></li>"
        for passed, name, reason in items
    )
    return f'<ul class="ns-checks">{body}</ul>'

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
        f'<table class="ns-table" aria-label="{fmt.escape(caption)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line."""
    body = "".join(
        f"<dt>{fmt.escape(name)}</dt><dd>{fmt.escape(value)}</dd>" for name, value in pairs
    )
    return f'<dl class="ns-facts">{body}</dl>'

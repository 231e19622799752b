"""A list to choose from, one page at a time: rows as buttons on the left, what is chosen stays in the session.

place = listing.place("queue", total, scope=filter)      # reads offset and size before the query
listing.show(place, entries)                             # draws rows and the pager
"""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from ui import format as fmt

SIZE = 12


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a list a person stands."""

    key: str
    total: int
    page: int
    size: int

    @property
    def offset(self) -> int:
        return self.page * self.size

    @property
    def num_pages(self) -> int:
        return max(1, -(-self.total // self.size))


@dataclass(frozen=True, slots=True)
class Entry:
    """One row, in plain text."""

    id: str
    title: str
    note: str = ""


def place(key: str, total: int, scope: object, size: int = SIZE) -> Place:
    """The page a person is on. `scope`: what is listed; another scope begins at its first row."""
    is_linked = st.session_state.pop(f"{key} linked", False)
    if st.session_state.get(f"{key} scope") != scope:
        st.session_state[f"{key} scope"] = scope
        st.session_state[f"{key} page"] = 0
        if not is_linked:
            choose(key, None)
    last = max(0, -(-total // size) - 1)
    page = min(int(st.session_state.get(f"{key} page", 0)), last)
    return Place(key, total, page, size)


def chosen(key: str) -> str | None:
    """Id of the row that a person opened last."""
    return st.session_state.get(f"{key} open")


def choose(key: str, id: str | None) -> None:
    st.session_state[f"{key} open"] = id


def link(key: str, id: str | None) -> None:
    """Choose a row from another page, whatever is listed when its own page opens."""
    choose(key, id)
    st.session_state[f"{key} linked"] = True


def opened(key: str, ids: Sequence[str]) -> str | None:
    """The row to show: the chosen one, else the first of the page."""
    return chosen(key) or (ids[0] if ids else None)


def show(at: Place, entries: Sequence[Entry], selected: str | None) -> None:
    """The rows and, when there is more than one page, the pager."""
    with st.container(key=f"list-{at.key}", gap=None):
        for entry in entries:
            note = f"  \n:small[{fmt.label(entry.note)}]" if entry.note else ""
            st.button(
                f"{fmt.label(entry.title)}{note}",
                key=f"{at.key} row {entry.id}",
                type="secondary" if entry.id == selected else "tertiary",
                width="stretch",
                on_click=choose,
                args=(at.key, entry.id),
            )
    _pager(at)


def _pager(at: Place) -> None:
    if at.num_pages < 2:
        return
    with st.container(horizontal=True, vertical_alignment="center", key=f"pager-{at.key}"):
        st.button(
            "Back",
            key=f"{at.key} back",
            icon=":material/chevron_left:",
            disabled=at.page == 0,
            on_click=_turn,
            args=(at, -1),
        )
        st.button(
            "On",
            key=f"{at.key} on",
            icon=":material/chevron_right:",
            disabled=at.page + 1 >= at.num_pages,
            on_click=_turn,
            args=(at, 1),
        )
        last = min(at.total, at.offset + at.size)
        st.caption(f"{at.offset + 1:,} to {last:,} of {at.total:,}")


def _turn(at: Place, by: int) -> None:
    st.session_state[f"{at.key} page"] = at.page + by
    choose(at.key, None)

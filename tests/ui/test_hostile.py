"""Log text is data on every page: never markup, never Markdown, never invisible, and cut when it is huge."""

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from store.files import FileStore
from tests.ui import hostile
from tests.ui.conftest import Desk

pytestmark = pytest.mark.postgres

MARKDOWN = ("markdown", "caption", "title", "header", "subheader", "info", "warning", "success")
LIMIT = 200_000
"""Bytes of text that a page may send."""
VISITS = (
    ("overview", None),
    ("failures", "All"),
    ("trajectories", None),
    ("data", "What reviews changed"),
    ("data", "Kept"),
    ("data", "Left out"),
    ("data", "Strategy"),
    ("memory", "Lessons"),
    ("memory", "Revisions"),
    ("promotion", None),
)


@pytest.fixture
def evil_desk(empty_desk: Desk, tmp_path: Path) -> Desk:
    with empty_desk.db.connect() as conn:
        hostile.fill(conn, FileStore(tmp_path / "files"))
    return empty_desk


@pytest.mark.parametrize(("page", "part"), VISITS)
def test_hostile_text_stays_text(evil_desk: Desk, page: str, part: str | None) -> None:
    app = evil_desk.open(page)
    if part is not None:
        app.button_group[0].set_value(part).run()
    assert not app.exception
    assert not app.error
    for html in bodies_of(app):
        assert "<script" not in html
        assert "<img" not in html
        check_visible(html)
    for text in markdown_of(app):
        assert "](javascript" not in text
        assert "<script>" not in text
        assert ":red[" not in text
        assert ":material/delete:" not in text
        assert "**bold**" not in text
        check_visible(text)
    shown = [*bodies_of(app), *markdown_of(app), *(item.value for item in app.code)]
    assert "hacked" in "".join(shown)
    assert sum(len(text.encode()) for text in shown) < LIMIT


def bodies_of(app: AppTest) -> list[str]:
    """HTML of the page, without the style sheet."""
    found = [str(item.proto.body) for item in app.get("html")]
    return [body for body in found if not body.startswith("<style")]


def markdown_of(app: AppTest) -> list[str]:
    """Everything that is read as Markdown: bodies, and labels of widgets."""
    found = [str(item.value) for name in MARKDOWN for item in app.get(name)]
    found += [item.label for item in app.button]
    found += [item.label for item in app.metric]
    return found


def check_visible(text: str) -> None:
    """No character that hides or reorders others."""
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\x07]", text)

"""What a listing of plug-ins reads from their files."""

from pathlib import Path

import pytest

from components import plugins

FILE = '''"""{doc}
"""
from components.plugins import plugin

@plugin
class Thing:
    pass
'''


@pytest.mark.parametrize(
    ("doc", "source"),
    [
        ("What it does.\n\nSource: arXiv 1, section 2.", "arXiv 1, section 2."),
        ("What it does.\n\nSource: arXiv 1 and\narXiv 2.\nOur choice: all else.", "arXiv 1 and arXiv 2."),
        ("What it does.\n\nSource: arXiv 1\n(an appendix).\n\nMore words.", "arXiv 1 (an appendix)."),
        ("What it does.\n\nSource: see\nhttps://example.org/a\nShapes: T tokens.", "see https://example.org/a"),
        ("What it does.\n\nOur choice: everything.", ""),
    ],
)  # fmt: skip
def test_a_source_goes_on_to_the_next_heading_or_empty_line(
    doc: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "thing.py").write_text(FILE.format(doc=doc))
    monkeypatch.setattr(plugins, "HOME", tmp_path)
    (found,) = plugins.describe("rewards")
    assert (found.name, found.summary, found.source) == ("thing", "What it does.", source)


def test_what_the_caller_knows_goes_to_plug_ins_that_ask_for_it_and_options_win() -> None:
    known = {"group_size": 4, "of_no_interest": True}
    assert plugins.make("curriculum", "signal", {}, known).group_size == 4
    assert plugins.make("curriculum", "signal", {"group_size": 6}, known).group_size == 6
    assert plugins.make("rewards", "verified", None, known) == plugins.make("rewards", "verified")

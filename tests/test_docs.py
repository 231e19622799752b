"""The documentation tells the truth: its table is the plug-ins', its commands and settings exist."""

import re
from pathlib import Path

import pytest

from flows.cli import COMMANDS
from flows.docs import BEGIN, END, with_table
from flows.settings import load_settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TEXTS = {path.name: path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}


def test_the_plugin_table_is_up_to_date():
    assert with_table(README) == README, "run `make docs`"


def test_a_readme_without_marks_is_refused():
    with pytest.raises(ValueError, match="must hold"):
        with_table(f"no table here, only {END} and {BEGIN}")


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_in_the_docs_exists(name):
    known = {*COMMANDS, "<flow>"}
    used = set(re.findall(r"nightshift (?:--[\w-]+ \S+ )*([a-z]+)\b", _code(TEXTS[name])))
    assert used <= known


@pytest.mark.parametrize("name", TEXTS)
def test_every_make_target_in_the_docs_exists(name):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", _code(TEXTS[name]))) <= targets


@pytest.mark.parametrize("name", TEXTS)
def test_every_settings_example_in_the_docs_is_valid(name, tmp_path):
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", TEXTS[name], re.DOTALL)):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        load_settings(path, environ={})


@pytest.mark.parametrize("name", TEXTS)
def test_every_file_named_in_the_docs_exists(name):
    named = re.findall(r"`((?:flows|components|store|ui|deploy|tests|docs)/[\w./-]+)`", TEXTS[name])
    missing = [path for path in named if not (ROOT / path).exists() and "<" not in path]
    assert not missing


def _code(text: str) -> str:
    """Everything in code marks: what a reader would type."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))

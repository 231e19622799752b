"""`make docs`: writes the plug-in table of the README from the plug-ins' own docstrings; `--check` only compares."""

import argparse
import sys
from pathlib import Path

from components import plugins

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- plug-ins: written by `make docs` -->", "<!-- end of plug-ins -->"


def plugin_table() -> str:
    """Every plug-in with its stage, what it is, and where it comes from."""
    rows = ["| stage | plug-in | what it is | source |", "|---|---|---|---|"]
    for kind in plugins.kinds():
        for info in plugins.describe(kind):
            cells = (kind, f"`{info.name}`", info.summary.rstrip("."), info.source or "ours")
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    """The text with the table between its marks replaced.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the README must hold {BEGIN!r} and then {END!r}")
    return f"{before}{BEGIN}\n{plugin_table()}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when the README is behind")
    arguments = parser.parse_args()
    old = README.read_text()
    new = with_table(old)
    if arguments.check and new != old:
        print("README.md is behind the plug-ins: run `make docs`", file=sys.stderr)
        return 1
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

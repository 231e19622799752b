"""The environment that TRL runs in: `.venv-trl` beside the product's own, made on first use and whenever its pins change.

Torch goes in first and alone: with it pinned and present, nothing later pulls another build of it.
"""

import subprocess
import sys
from pathlib import Path

from components.serial import digest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements-trl.txt")
FOLDER = ROOT / ".venv-trl"
INSTALL = ("-m", "pip", "install", "--quiet", "--no-compile")


def python_of(folder: Path = FOLDER, requirements: Path = REQUIREMENTS) -> Path:
    """The interpreter of a complete environment; installs it where it is missing or has other pins."""
    python = folder / "bin" / "python"
    mark = folder / ".ready"
    made = digest(requirements.read_text())
    if mark.is_file() and mark.read_text() == made:
        return python
    print(f"installing {', '.join(pins(requirements))} into {folder}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    # From inside the folder: pip would take the product's own packages in the working folder for installed ones.
    for command in (
        (sys.executable, "-m", "venv", "--clear", str(folder)),
        (str(python), *INSTALL, torch_pin(requirements)),
        (str(python), *INSTALL, "--requirement", str(requirements)),
    ):
        subprocess.run(command, check=True, cwd=folder)
    mark.write_text(made)
    return python


def pins(requirements: Path = REQUIREMENTS) -> list[str]:
    lines = (line.strip() for line in requirements.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def torch_pin(requirements: Path = REQUIREMENTS) -> str:
    """The one line that names torch."""
    (found,) = (line for line in pins(requirements) if line.startswith("torch=="))
    return found

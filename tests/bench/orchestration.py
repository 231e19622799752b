"""Orchestration: what a night costs beside its stages.

Three views, on a project with a tiny model whose stages do next to nothing:

    first night    the wall time of the Prefect flow less the time that its stages report
    done night     the same flow again: the ledger knows every stage, so all of it is orchestration
    whole command  `nightshift night` on the done night, from the start of the process to its end

and the done night with its stages called directly, to tell Prefect's part. Shares are of a night of `NIGHT_S` seconds.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench import child
from tests.bench.measure import Figure, Part, Ratio

AIM = 0.03
NIGHT_S = 700.0
"""Length of a night of the profile `cpu` that shares refer to."""
NIGHT = "2026-03-02"
AGENT = "help-desk"
CONFIG = child.ROOT / "tests" / "flows" / "tiny.toml"


def measure(rounds: int = 3) -> Part:
    answers: dict[str, list[dict[str, Any]]] = {"flow": [], "direct": [], "command": []}
    with _project() as home:
        _command(home, "day")
        first = _worked(home, "flow")
        check_stages(first["stages"])
        for _ in range(rounds):
            answers["flow"].append(_worked(home, "flow"))
            answers["direct"].append(_worked(home, "direct"))
            begun = time.perf_counter()
            _command(home, "night", "--date", NIGHT)
            answers["command"].append({"seconds": time.perf_counter() - begun})
    return summarise(first, answers)


def _worked(home: Path, way: str) -> dict[str, Any]:
    arguments = {"model": str(home / "tiny"), "way": way}
    variables = {"NIGHTSHIFT_HOME": str(home)}
    return child.call("tests.bench.orchestration:run", arguments, 1, variables=variables)


def summarise(first: dict[str, Any], answers: dict[str, list[dict[str, Any]]]) -> Part:
    """`first`: the night when its stages ran; `answers`: by way, the nights after it."""

    def figure(name: str, key: str, *ways: str) -> Figure:
        return Figure(name, "s", tuple(each[key] for way in ways for each in answers[way]))

    inside = sum(seconds for _, seconds in first["stages"].values())
    figures = (
        Figure("first night, flow less its stages", "s", (first["night_s"] - inside,)),
        figure("done night as a Prefect flow", "night_s", "flow"),
        figure("done night, stages called directly", "night_s", "direct"),
        figure("imports of a night", "imports_s", "flow", "direct"),
        figure("whole command on the done night", "seconds", "command"),
    )
    whole = f"{NIGHT_S:.0f} s, a night of the profile cpu"
    ratios = tuple(
        Ratio(each.name, whole, "of the time", each.median / NIGHT_S, at_most=aim)
        for each, aim in zip(figures, (AIM, AIM, None, None, None), strict=True)
    )
    facts = {
        "Prefect's own part of a done night, s": round(figures[1].median - figures[2].median, 2),
        "stages of the first night, s": {
            name: round(seconds, 2) for name, (_, seconds) in first["stages"].items()
        },
    }
    setup = f"a night of a tiny model, stages of seconds; {len(answers['flow'])} processes a side"
    return Part("orchestration", setup, figures, ratios, facts)


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """The night of the home that `NIGHTSHIFT_HOME` names; `way` is `flow` (Prefect) or `direct`."""
    begun = time.perf_counter()
    from flows.quiet import hush

    hush(Path(os.environ["NIGHTSHIFT_HOME"]))
    from flows import nightly
    from flows.settings import load_settings

    imports_s = time.perf_counter() - begun
    overrides = (_override(arguments["model"]),)
    begun = time.perf_counter()
    if arguments["way"] == "flow":
        nightly.nightly(night=NIGHT, config=str(CONFIG), overrides=overrides)
    else:
        nightly.work_night(load_settings(CONFIG, None, overrides), NIGHT)
    night_s = time.perf_counter() - begun
    stages = _stages(load_settings(CONFIG, None, overrides))
    return {"imports_s": imports_s, "night_s": night_s, "stages": stages}


def _stages(settings: Any) -> dict[str, list[Any]]:
    """Status and seconds of each stage when the night was worked."""
    from flows.resources import open_resources
    from store import nights

    with open_resources(settings) as r, r.db.connect() as conn:
        row = nights.get(conn, AGENT, NIGHT)
    lines = (row.summary or {})["stages"] if row else []
    return {line["name"]: [line["status"], line["seconds"]] for line in lines}


def check_stages(stages: dict[str, list[Any]]) -> None:
    """A night that did not run every stage says nothing about a night.

    Raises:
        SideFailed: a stage failed or was skipped.
    """
    bad = {name: status for name, (status, _) in stages.items() if status != "done"}
    if bad or len(stages) < 7:
        raise child.SideFailed(f"the tiny night did not run all seven stages: {stages}")


@contextmanager
def _project() -> Iterator[Path]:
    """A home with a tiny model in it; removed afterwards, its server has stopped by then."""
    from tests.fakes import save_tiny_policy

    home = Path(tempfile.mkdtemp(prefix="nightshift-bench-"))
    try:
        save_tiny_policy(home / "tiny")
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _override(model: str) -> str:
    return f"model.name={model!r}"


def _command(home: Path, *words: str) -> None:
    """`nightshift ...` for this project, as an operator starts it."""
    environ = child.environment(1, {"NIGHTSHIFT_HOME": str(home)})
    model = _override(str(home / "tiny"))
    start = [sys.executable, "-m", "flows.cli", "--config", str(CONFIG), "--set", model]
    done = subprocess.run(
        [*start, *words], cwd=child.ROOT, env=environ, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise child.SideFailed(f"nightshift {' '.join(words)} failed:\n{done.stderr[-3000:]}")

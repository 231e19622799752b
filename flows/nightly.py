"""The night on one screen.

    ingest -> mine -> curate -> remember -> train -> evaluate -> offer

Each stage is a plain function: ids in, one component at work, rows out, ids back. The ledger makes it run once; Prefect
schedules it, retries what the database's absence broke, and shows it. `nightly.fn` is the same night without Prefect.
"""

import argparse
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed
from prefect.tasks import exponential_backoff

from components.errors import NightRunning, Unavailable
from flows import policies, summary
from flows.checks import check_plugins
from flows.curate import curate
from flows.evaluate import Memories, evaluate
from flows.ingest import has_new_logs, ingest
from flows.mine import mine
from flows.nights import check_night, logical_date, tonight
from flows.offer import offer
from flows.orphans import end_orphaned_servers
from flows.promotion import carry_out
from flows.remember import in_service, remember
from flows.resources import Resources, open_resources
from flows.settings import Settings, load_settings
from flows.stage import NightFailed, StageResult, skipped
from flows.train import scratch, train
from store import ledger, nights

STAGES = ("ingest", "mine", "curate", "remember", "train", "evaluate", "offer")


def is_repeatable(_task: Any, _run: Any, state: Any) -> bool:
    """Only the database's absence is worth another try; a wrong answer stays wrong."""
    try:
        state.result()
    except Unavailable:
        return True
    except Exception:
        return False
    return False


def stage_task(function: Callable[..., StageResult]) -> Callable[..., StageResult]:
    """A stage as a Prefect task: named, retried when the store was away, never cached (the ledger decides)."""
    return task(
        name=function.__name__,
        retries=3,
        retry_delay_seconds=exponential_backoff(2),
        retry_condition_fn=is_repeatable,
        cache_policy=NO_CACHE,
        persist_result=False,
    )(function)


@dataclass
class Progress:
    """The stages that ran, in order."""

    results: list[StageResult] = field(default_factory=list)

    def add(self, result: StageResult) -> StageResult:
        self.results.append(result)
        return result

    def output(self, name: str) -> dict[str, Any]:
        return next((each.output for each in self.results if each.name == name), {})


def run_night(r: Resources, night: str, wrap: Callable[..., Any] = lambda stage: stage) -> Progress:
    """All stages of one night; a stage whose input is missing is skipped with the reason."""
    done = Progress()
    ingested = done.add(wrap(ingest)(r, night))
    if not ingested.ok:
        return give_up(r, done, ingested.cause)
    mined = done.add(wrap(mine)(r, night, ingested.output["state"]))
    if not mined.ok:
        return give_up(r, done, mined.cause)
    curated = done.add(wrap(curate)(r, night, ingested.output["state"]))
    if not curated.ok:
        return give_up(r, done, curated.cause)
    remembered = done.add(wrap(remember)(r, night, curated.output["bundle_id"]))
    memories = Memories(remembered.output.get("before"), remembered.output.get("revision"))
    if not remembered.ok:  # what served the day goes on serving
        memories = Memories(in_service(r), in_service(r))
    trained = done.add(wrap(train)(r, night, curated.output["bundle_id"], memories.after))
    if not trained.output.get("challenger"):
        return give_up(r, done, trained.cause or trained.output.get("line"))
    evaluated = done.add(wrap(evaluate)(r, night, trained.output, memories))
    if not evaluated.ok:
        return give_up(r, done, evaluated.cause)
    done.add(wrap(offer)(r, night, trained.output, evaluated.output))
    return done


def give_up(r: Resources, done: Progress, why: str | None) -> Progress:
    """The rest of the night, skipped."""
    for name in STAGES[len(done.results) :]:
        done.add(skipped(r, name, why or "nothing was made for it"))
    return done


@flow(name="nightly", persist_result=False)
def nightly(
    profile: str | None = None,
    night: str | None = None,
    config: str | None = None,
    overrides: tuple[str, ...] = (),
) -> Any:
    """One night as a Prefect flow; the id of the night, or the failed state of one that is not whole.

    Args:
        profile: size of the machine; None takes the settings file's.
        night: id of the night; None is tonight.
        config: path of the settings file; None is `nightshift.toml` in the working folder.
        overrides: settings as `section.key=value`.
    """
    settings = load_settings(Path(config) if config else None, profile, tuple(overrides))
    try:
        return work_night(settings, night, stage_task)
    except (NightFailed, NightRunning) as error:  # one line in Prefect instead of a traceback
        return Failed(message=str(error), data=error)


def work_night(
    settings: Settings, night: str | None, wrap: Callable[..., Any] = lambda stage: stage
) -> str:
    """Open everything, hold the night's lock, run its stages, write its summary.

    Raises:
        ConfigError: the settings name a plug-in or an option that is not there; nothing began.
        NightFailed: some stages failed; the summary is written and says so.
        NightRunning: another process works on a night of this agent.
    """
    started = time.monotonic()
    die_at_once_when_terminated()
    check_plugins(settings)
    with open_resources(settings) as r:
        night = check_night(night) if night else _tonight(r)
        with ledger.night_lock(r.db, settings.agent) as lock:
            r.console.print(
                f"[bold]Night {night}[/bold] of {settings.agent}, profile {settings.profile}"
            )
            carry_out(r)
            before = _begin(r, night)
            done = run_night(r, night, lambda stage: wrap(_holding(lock, stage)))
            made = summary.summarise(r, night, done.results, time.monotonic() - started)
            summary.keep(r, night, before, made, done.results)
            summary.show(r, night, made, done.results)
            _tidy(r, night, done)
    failed = [each for each in done.results if each.status == "failed"]
    if failed:
        causes = "; ".join(f"{each.name}: {each.cause}" for each in failed)
        raise NightFailed(
            f"night {night} is not whole, running it again tries this again: {causes}"
        )
    return night


def _holding(
    lock: ledger.NightLock, stage: Callable[..., StageResult]
) -> Callable[..., StageResult]:
    """A stage that begins, and begins again, only while this process holds the night."""

    @wraps(stage)
    def held(*arguments: Any) -> StageResult:
        lock.hold()
        return stage(*arguments)

    return held


def _tidy(r: Resources, night: str, done: Progress) -> None:
    """Remove the scratch of a training that is done, and what killed processes left half-written."""
    r.files.clear_partial(datetime.now(UTC) - timedelta(days=1))
    if not any(each.name == "train" and each.ok for each in done.results):
        return
    with r.db.connect() as conn:
        keys = [
            row.key
            for row in ledger.of_night(conn, r.settings.agent, night)
            if row.stage == "train"
        ]
    for key in keys:
        shutil.rmtree(scratch(r, key), ignore_errors=True)


def die_at_once_when_terminated() -> None:
    """Take SIGTERM back from Prefect, whose handler raises inside whatever runs, event loop callbacks included.

    A night may be killed at any moment: what is written is whole, and the next run goes on from there.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _tonight(r: Resources) -> str:
    with r.db.connect() as conn:
        last = next(iter(nights.recent(conn, r.settings.agent, 1)), None)
    finished = last is not None and last.status == "done"
    today = logical_date(datetime.now(UTC), r.settings.schedule.timezone)
    return tonight(today, last.night if last else None, finished, has_new_logs(r))


def _begin(r: Resources, night: str) -> nights.Night:
    """The night's row: made when it first begins, with the champion and the cut-off for reviews."""
    with r.db.connect() as conn:
        known = nights.get(conn, r.settings.agent, night)
    if known is not None:
        return known
    champion = policies.ensure_champion(r).version
    row = nights.Night(night, r.settings.agent, "running", datetime.now(UTC), champion)
    with r.db.connect() as conn:
        nights.put(conn, row)
    return row


def night(settings: Settings, arguments: argparse.Namespace) -> int:
    """`nightshift night`: tonight as a Prefect flow in this process."""
    end_orphaned_servers(os.environ["PREFECT_HOME"])
    nightly(
        profile=settings.profile,
        night=check_night(arguments.date) if arguments.date else None,
        config=str(arguments.config) if arguments.config else None,
        overrides=tuple(arguments.overrides),
    )
    return 0

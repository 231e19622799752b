"""`nightshift doctor` and `nightshift plugins`: what a night needs, checked; what there is to choose from."""

import argparse
import difflib
import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from components import plugins as table
from components.errors import ConfigError, NightshiftError
from flows import policies
from flows.checks import check_plugins, named
from flows.ingest import log_paths
from flows.resources import Resources, open_resources
from flows.settings import Settings

MIN_FREE_GB = 5


@dataclass(frozen=True)
class Finding:
    name: str
    ok: bool
    text: str


def doctor(settings: Settings, _arguments: argparse.Namespace) -> int:
    """Check each thing a night needs; exit 1 when one is missing."""
    findings = [_disk(settings), _model(settings), _plugins(settings)]
    try:
        with open_resources(settings) as r:
            findings.append(Finding("store", True, f"answers, home {settings.home}"))
            findings += [_guarded(name, check, r) for name, check in CHECKS.items()]
    except NightshiftError as error:
        findings.append(Finding("store", False, str(error)))
    for each in findings:
        print(f"  {'ok  ' if each.ok else 'FAIL'} {each.name:<10} {each.text}")
    return 0 if all(each.ok for each in findings) else 1


def _guarded(name: str, check: Callable[[Resources], str], r: Resources) -> Finding:
    try:
        return Finding(name, True, check(r))
    except NightshiftError as error:
        return Finding(name, False, str(error))


def _disk(settings: Settings) -> Finding:
    place = next(each for each in (settings.home, *settings.home.parents) if each.exists())
    free = shutil.disk_usage(place).free / 2**30
    return Finding("disk", free >= MIN_FREE_GB, f"{free:.0f} GB free, {MIN_FREE_GB} needed")


def _model(settings: Settings) -> Finding:
    name = settings.model.name.replace("-", "_")
    found = name.isidentifier() and importlib.util.find_spec(name) is not None
    where = "packaged weights" if found else "a folder or hub id, loaded when a night starts"
    return Finding("model", True, f"{settings.model.name}: {where}")


def _plugins(settings: Settings) -> Finding:
    try:
        check_plugins(settings)
    except NightshiftError as error:
        return Finding("plug-ins", False, str(error))
    num = len(list(named(settings)))
    return Finding("plug-ins", True, f"{num} named, recipe {settings.train.recipe!r}: all exist")


def _tracking(r: Resources) -> str:
    champion = policies.registry_of(r).resolve(r.settings.agent, "champion")
    return f"MLflow answers, champion {champion.version if champion else 'not set yet'}"


def _logs(r: Resources) -> str:
    return f"{len(log_paths(r.settings))} log files"


def _sandbox(_r: Resources) -> str:
    from components.curation._sandbox import check_boundary

    boundary = check_boundary()
    return f"Landlock ABI {boundary.landlock_abi}, seccomp on, runs as uid {boundary.uid}"


CHECKS: dict[str, Callable[[Resources], str]] = {
    "tracking": _tracking,
    "logs": _logs,
    "sandbox": _sandbox,
}


def plugins(_settings: Settings, arguments: argparse.Namespace) -> int:
    """List plug-ins by stage, without importing them."""
    if arguments.kind and arguments.kind not in table.kinds():
        close = difflib.get_close_matches(arguments.kind, table.kinds(), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"no stage named {arguments.kind!r}.{hint} Available: {', '.join(table.kinds())}"
        )
    for kind in [arguments.kind] if arguments.kind else table.kinds():
        for info in table.describe(kind):
            print(f"{kind}/{info.name:<20}{info.summary}")
    return 0

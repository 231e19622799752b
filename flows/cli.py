"""The `nightshift` command: every flow, and the few things an operator does by hand.

Each subcommand is a function of this package, imported when it is called; `--help` and a wrong setting answer at once.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

from components.errors import ConfigError, NightshiftError
from flows.quiet import hush
from flows.settings import PROFILES, Settings, load_settings

COMMANDS: dict[str, tuple[str, str]] = {
    "day": ("flows.day:day", "serve customers with the champion through the recording proxy"),
    "night": (
        "flows.nightly:night",
        "run tonight: ingest, mine, curate, remember, train, evaluate, offer",
    ),
    "status": ("flows.operate:status", "what is running, what waits for a person"),
    "report": ("flows.operate:report", "print the report of a night"),
    "promote": ("flows.operate:promote", "make the challenger the champion"),
    "rollback": ("flows.operate:rollback", "make the previous champion the champion again"),
    "ingest": ("flows.ingest:ingest_paths", "read logs into the store without running a night"),
    "ui": ("flows.serve:ui", "open the review app"),
    "mlflow": ("flows.serve:mlflow", "open MLflow on the runs and the registry"),
    "proxy": (
        "flows.serve:proxy",
        "record an agent's traffic in front of any OpenAI-compatible endpoint",
    ),
    "engine": ("flows.serve:engine", "serve the champion as an OpenAI-compatible endpoint"),
    "schedule": ("flows.scheduler:schedule", "run the night by its cron schedule on this machine"),
    "doctor": ("flows.doctor:doctor", "check everything a night needs"),
    "plugins": ("flows.doctor:plugins", "list the plug-ins of every stage"),
    "db": ("flows.operate:db", "`db upgrade` migrates the store"),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nightshift", description=__doc__)
    parser.add_argument("--config", type=Path, help="settings file (default: nightshift.toml)")
    parser.add_argument("--profile", choices=PROFILES, help="size of the machine (default: cpu)")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    subs = {name: commands.add_parser(name, help=text) for name, (_, text) in COMMANDS.items()}
    subs["night"].add_argument("--date", help="id of the night (default: tonight)")
    subs["report"].add_argument("--night", help="id of the night (default: the last one)")
    for name in ("promote", "rollback"):
        subs[name].add_argument("--reason", required=True, help="why; kept with the promotion")
        subs[name].add_argument("--actor", help="who decides (default: the system's user)")
    subs["promote"].add_argument("--version", help="version to promote (default: the challenger)")
    subs["promote"].add_argument(
        "--override", action="store_true", help="promote although the gate refused it"
    )
    subs["ingest"].add_argument("paths", nargs="+", help="files, folders or globs")
    subs["ingest"].add_argument(
        "--format", default="auto", help="reader plug-in (default: by content)"
    )
    subs["ui"].add_argument("--port", type=int, default=8501)
    subs["mlflow"].add_argument("--port", type=int, default=5000)
    subs["proxy"].add_argument("--upstream", required=True, help="base URL that ends in /v1")
    subs["proxy"].add_argument("--port", type=int, default=4100)
    subs["engine"].add_argument("action", choices=["up"])
    subs["engine"].add_argument("--port", type=int, default=8000)
    subs["plugins"].add_argument("kind", nargs="?", help="one stage only")
    subs["db"].add_argument("action", choices=["upgrade"])
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 it did not work out, 2 a setting or argument is wrong."""
    arguments = make_parser().parse_args(argv)
    try:
        settings = load_settings(arguments.config, arguments.profile, tuple(arguments.overrides))
        hush(settings.home)
        return _run(settings, arguments)
    except ConfigError as error:
        print(f"nightshift: {error}", file=sys.stderr)
        return 2
    except NightshiftError as error:
        print(f"nightshift: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("nightshift: stopped; run the same command again to go on", file=sys.stderr)
        return 130


def _run(settings: Settings, arguments: argparse.Namespace) -> int:
    place, _ = COMMANDS[arguments.command]
    module, _, name = place.partition(":")
    command = getattr(importlib.import_module(module), name)
    return command(settings, arguments)


if __name__ == "__main__":
    sys.exit(main())

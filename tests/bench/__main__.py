"""`python -m tests.bench [PART...]`: how fast we are, beside peers and limits, in one run on this machine.

learner         a GRPO step against TRL, an update against a bare loop
rollout         sampled tokens per second against transformers `generate`
ingestion       log bytes per second against COPY
orchestration   what a night costs beside its stages
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.child import SideFailed
from tests.bench.measure import Part, as_data, render
from tests.bench.workload import Size

PARTS = ("learner", "rollout", "ingestion", "orchestration")
QUICK_BYTES = 4_000_000


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every side, torch"
    )
    parser.add_argument("--quick", action="store_true", help="fewest repeats: shows that it runs")
    return parser


def measures(arguments: argparse.Namespace) -> dict[str, Callable[[], Part]]:
    """Part -> what measures it; nothing heavy is imported before it is wanted."""
    size = Size(threads=arguments.threads)
    rounds, num_bytes = 3, 40_000_000
    if arguments.quick:
        size, rounds, num_bytes = replace(size, steps=1, rounds=1), 1, QUICK_BYTES

    def learner() -> Part:
        from tests.bench import learner

        return learner.measure(size)

    def rollout() -> Part:
        from tests.bench import rollout

        return rollout.measure(size)

    def ingestion() -> Part:
        from tests.bench import ingestion

        return ingestion.measure(num_bytes, rounds)

    def orchestration() -> Part:
        from tests.bench import orchestration

        return orchestration.measure(rounds)

    made = (learner, rollout, ingestion, orchestration)
    return {each.__name__: each for each in made}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    about = Path("/proc/cpuinfo").read_text()
    cpu = about.partition("model name\t: ")[2].partition("\n")[0]
    flags = about.partition("flags\t")[2].partition("\n")[0].split()
    return {
        "cpu": cpu or platform.processor(),
        "matrix_units": [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    about = machine()
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    done: list[Part] = []
    failed: dict[str, str] = {}
    known = measures(arguments)
    for name in arguments.parts or PARTS:
        begun = time.monotonic()
        try:
            done.append(known[name]())
        except SideFailed as error:  # the other parts are worth having all the same
            failed[name] = str(error)
            print(f"\n{name} failed: {error}", file=sys.stderr, flush=True)
            continue
        print(f"\n{render(done[-1])}\n  took {time.monotonic() - begun:.0f} s", flush=True)
    if arguments.json:
        data = {"machine": about, "command": sys.argv, "parts": as_data(done), "failed": failed}
        arguments.json.write_text(json.dumps(data, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

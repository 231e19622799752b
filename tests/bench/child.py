"""A measurement in a process of its own: clean memory, chosen cores, nothing left behind by the side before.

    python -m tests.bench.child tests.bench.bare:run '{"variant": "tree", ...}'

The function gets the arguments as one dictionary and returns one; `peak_mb` is added: the largest resident memory of the
process, from the kernel. The answer is the last line of standard output.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class SideFailed(RuntimeError):
    """A measured process ended with an error."""


def call(
    function: str,
    arguments: dict[str, Any],
    threads: int,
    core: int | None = None,
    variables: dict[str, str] | None = None,
) -> Any:
    """Run `module:function` in a process of its own, pinned to a core when one is named."""
    return answer_of(command(function, arguments, core), threads, variables)


def command(function: str, arguments: dict[str, Any], core: int | None = None) -> list[str]:
    pinned = [] if core is None else [str(core)]
    return [sys.executable, "-m", "tests.bench.child", function, json.dumps(arguments), *pinned]


def answer_of(words: list[str], threads: int, variables: dict[str, str] | None = None) -> Any:
    """The JSON in the last line that a command prints.

    Raises:
        SideFailed: it ended with an error, which is quoted.
    """
    done = subprocess.run(
        words, cwd=ROOT, env=environment(threads, variables), capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SideFailed(
            f"{' '.join(words[:4])} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def environment(threads: int, variables: dict[str, str] | None = None) -> dict[str, str]:
    """Variables of a measured process.

    Compiled modules are kept, as they are on any machine but one told otherwise: compiling the libraries at every start
    takes longer than many a measurement.
    """
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    kept = {"PYTHONPYCACHEPREFIX": str(ROOT / ".nightshift" / "bytecode"), "HF_HUB_OFFLINE": "1"}
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**own, **limits, **kept, **(variables or {})}


def last_core() -> int:
    """The highest core that this process may use; the first ones are where the rest of a machine tends to be."""
    return max(os.sched_getaffinity(0))


def peak_mb() -> float:
    """Largest resident memory of this process so far, in MB (10^6 bytes).

    Not `ru_maxrss`: that one survives `exec`, so a child of a large process would report its parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError("the kernel does not report VmHWM")


def main() -> None:
    function, arguments = sys.argv[1], json.loads(sys.argv[2])
    if len(sys.argv) > 3:
        os.sched_setaffinity(0, {int(sys.argv[3])})
    module, _, name = function.partition(":")
    made = getattr(importlib.import_module(module), name)(arguments)
    print(json.dumps({**made, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()

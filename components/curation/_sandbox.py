"""The only place where a curation strategy is executed: another process, with nothing to reach.

    run_strategy(source, corpus, context, limits) -> what `curate(corpus, ctx)` returned, as JSON data

The program is linted (`_lint.py`), then sent to a fresh interpreter that gives up user, files, sockets, processes and
signals before it reads the program (`_sandbox_child.py`). Every wall is tried at every start: where Landlock or seccomp
cannot be had, nothing runs and `UnsafeStrategy` says which is missing. The host holds the clock, the output limit and
the process group. By default a strategy runs twice and must answer byte for byte the same.

The interpreter is started with the parts of isolated mode except `-E` (`-s -P -S -B`, and an environment that holds one
variable), because `-I` would ignore the fixed hash seed.

Our choice: no bubblewrap on top. The child cannot open a path, make a socket or start a process at all, so namespaces
would take nothing further away, and they are refused in ordinary containers.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from components.curation._lint import lint
from components.errors import UnsafeStrategy

_CHILD = Path(__file__).with_name("_sandbox_child.py")
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run of a strategy may use."""

    cpu_s: int = 120
    wall_s: float = 180.0
    memory_mb: int = 1024
    output_mb: float = 16.0
    """Everything written, the answer and what was printed together."""
    num_runs: int = 2
    """Runs that must agree; 1 switches the determinism check off."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a strategy may know beside the corpus; it sees these fields and `ctx.rng`."""

    seed: int = 0
    budget: int = 2000
    """Most examples that the bundle may hold."""
    failures: tuple[dict[str, Any], ...] = ()
    """Summary of the failures to aim at: signature, mode_id, count."""


class Boundary(NamedTuple):
    """The walls that stand on this machine."""

    landlock_abi: int
    seccomp: bool
    uid: int


@dataclass(slots=True)
class _Exchange:
    """One run as the host sees it."""

    pending: memoryview
    answer: bytearray = field(default_factory=bytearray)
    printed: bytearray = field(default_factory=bytearray)


def run_strategy(
    source: str,
    corpus: dict[str, Any],
    context: Context = Context(),
    limits: Limits = Limits(),
) -> Any:
    """What the strategy returned, as JSON data.

    Raises:
        UnsafeStrategy: refused by the lint, by a wall, by a limit, or not deterministic; or the program failed.
    """
    lint(source)
    return execute(source, corpus, context, limits)


def check_boundary(limits: Limits = Limits()) -> Boundary:
    """Raise every wall without running a program.

    Raises:
        UnsafeStrategy: this machine cannot hold strategies.
    """
    walls = _read(_exchange(b"null\n", limits))
    return Boundary(walls["landlock_abi"], walls["seccomp"], walls["uid"])


def execute(source: str, corpus: dict[str, Any], context: Context, limits: Limits) -> Any:
    """`run_strategy` without the lint, which is no boundary."""
    named = {"seed": context.seed, "budget": context.budget, "failures": context.failures}
    request = {"source": source, "corpus": corpus, "context": named}
    line = json.dumps(request).encode("ascii") + b"\n"
    first = _exchange(line, limits)
    value = _read(first)
    for _ in range(limits.num_runs - 1):
        if _exchange(line, limits) != first:
            raise UnsafeStrategy(
                "the strategy is not deterministic: two runs on the same corpus and seed differ; "
                "draw from ctx.rng only, and sort what comes out of sets"
            )
    return value


def _read(line: bytes) -> Any:
    """The answer's value, or the refusal as an error."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnsafeStrategy(f"the strategy's answer is not one line of JSON: {error}") from error
    if isinstance(answer, dict) and set(cast("dict[str, Any]", answer)) == {"ok"}:
        return answer["ok"]
    if not (
        isinstance(answer, dict) and set(cast("dict[str, Any]", answer)) == {"failed", "reason"}
    ):
        raise UnsafeStrategy(f"the strategy's answer is not of the sandbox: {line[:80]!r}")
    reasons = {
        "no_boundary": "no strategy can run on this machine, a wall is missing",
        "denied": "the strategy tried what it may not",
        "memory": "the strategy went over its memory limit",
    }
    raise UnsafeStrategy(
        f"{reasons.get(answer['failed'], 'the strategy failed')}: {answer['reason']}"
    )


def _exchange(line: bytes, limits: Limits) -> bytes:
    """Start the child, send the line, and return the one it answers."""
    command = [sys.executable, "-s", "-P", "-S", "-B", str(_CHILD)]
    child = subprocess.Popen(
        [*command, str(limits.cpu_s), str(limits.memory_mb)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONHASHSEED": "0"},
        cwd="/",
        start_new_session=True,
    )
    exchange = _Exchange(memoryview(line))
    try:
        _talk(child, exchange, limits)
        child.wait(timeout=5)
    except subprocess.TimeoutExpired as error:
        raise UnsafeStrategy("the strategy answered and then did not end") from error
    finally:
        _end(child)
    if child.returncode != 0:
        raise UnsafeStrategy(_obituary(child.returncode, exchange, limits))
    return bytes(exchange.answer)


def _talk(child: subprocess.Popen[bytes], exchange: _Exchange, limits: Limits) -> None:
    """Move bytes until the child closed its pipes, within the wall clock and the output limit."""
    deadline = time.monotonic() + limits.wall_s
    most = int(limits.output_mb * 1024 * 1024)
    stdin, stdout, stderr = (
        cast("IO[bytes]", pipe) for pipe in (child.stdin, child.stdout, child.stderr)
    )
    with selectors.DefaultSelector() as selector:
        os.set_blocking(stdin.fileno(), False)
        selector.register(stdin, selectors.EVENT_WRITE)
        selector.register(stdout, selectors.EVENT_READ, exchange.answer)
        selector.register(stderr, selectors.EVENT_READ, exchange.printed)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            ready = selector.select(max(left_s, 0))
            if not ready and left_s <= 0:
                raise UnsafeStrategy(
                    f"the strategy was stopped after {limits.wall_s:g} s of wall time"
                )
            for key, _ in ready:
                pipe = cast("IO[bytes]", key.fileobj)
                if not (_send(pipe, exchange) if pipe is stdin else _receive(pipe, key.data)):
                    selector.unregister(pipe)
                    pipe.close()
            if len(exchange.answer) + len(exchange.printed) > most:
                raise UnsafeStrategy(
                    f"the strategy was stopped after {limits.output_mb:g} MB of output"
                )


def _send(pipe: IO[bytes], exchange: _Exchange) -> bool:
    """Whether more is to be sent."""
    try:
        sent = os.write(pipe.fileno(), exchange.pending[:_CHUNK])
    except BlockingIOError:
        return True
    except BrokenPipeError:
        return False
    exchange.pending = exchange.pending[sent:]
    return bool(exchange.pending)


def _receive(pipe: IO[bytes], into: bytearray) -> bool:
    """Whether more may come."""
    data = os.read(pipe.fileno(), _CHUNK)
    into.extend(data)
    return bool(data)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the whole process group and leave no zombie and no open pipe."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _obituary(returncode: int, exchange: _Exchange, limits: Limits) -> str:
    """Why the child died, from its exit status."""
    if -returncode == signal.SIGXCPU:
        return f"the strategy was stopped after {limits.cpu_s} s of processor time"
    if -returncode == signal.SIGKILL:
        return (
            f"the strategy was killed: over {limits.cpu_s} s of processor time with the warning "
            "ignored, or this machine ran out of memory"
        )
    said = exchange.printed[-500:].decode("utf-8", "replace").strip()
    cause = signal.Signals(-returncode).name if returncode < 0 else f"exit status {returncode}"
    return f"the strategy's process died: {cause}{': ' + said if said else ''}"

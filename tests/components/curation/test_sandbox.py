"""Strategies cannot get out: every way tried here is one that worked in an unprotected interpreter.

The attacks skip the lint on purpose and reach `os`, `sys` and `ctypes` through the subclasses of `object`, so what
refuses them is the boundary and nothing else.
"""

import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from components.curation import _sandbox_child as child
from components.curation._sandbox import (
    Context,
    Limits,
    _read,
    check_boundary,
    execute,
    run_strategy,
)
from components.errors import UnsafeStrategy

SMALL = Limits(cpu_s=2, wall_s=20, memory_mb=256, output_mb=1, num_runs=1)
CHILD = Path(child.__file__)
ESCAPE = """
def curate(corpus, ctx):
    kinds = ().__class__.__base__.__subclasses__()
    names = [kind for kind in kinds if kind.__name__ == "_wrap_close"][0].__init__.__globals__
    sys = names["sys"]
    os, ctypes, socket = (sys.modules[name] for name in ("os", "ctypes", "socket"))
    libc = ctypes.CDLL(None, use_errno=True)
"""


def attack(body: str, limits: Limits = SMALL) -> object:
    return execute(f"{ESCAPE}    {body}\n", {}, Context(), limits)


def test_a_strategy_computes() -> None:
    source = (
        "import statistics\n"
        "def curate(corpus, ctx):\n"
        "    return {'mean': statistics.mean(corpus['values']), 'seed': ctx.seed, 'budget': ctx.budget,"
        " 'failures': ctx.failures, 'draw': ctx.rng.random()}\n"
    )
    context = Context(seed=7, budget=3, failures=({"signature": "a|b", "count": 2},))
    value = run_strategy(source, {"values": [1, 2, 6]}, context, SMALL)
    assert value["mean"] == 3
    assert (value["seed"], value["budget"]) == (7, 3)
    assert value["failures"] == [{"signature": "a|b", "count": 2}]
    assert 0 <= value["draw"] < 1


def test_every_allowed_module_can_be_used() -> None:
    uses = [f"import {name}" for name in child.ALLOWED_MODULES]
    body = (
        "    when = datetime.datetime.strptime('2024-05-01', '%Y-%m-%d')\n"
        "    text = '\\N{BULLET}'.encode('latin-1', 'replace').decode('utf-16', 'replace')\n"
        "    return [when.isoformat(), statistics.NormalDist().inv_cdf(0.5), len(text)]\n"
    )
    source = "\n".join([*uses, "def curate(corpus, ctx):", body])
    assert run_strategy(source, {}, Context(), SMALL)[:2] == ["2024-05-01T00:00:00", 0.0]


def test_the_boundary_stands_here() -> None:
    walls = check_boundary()
    assert walls.seccomp
    assert walls.landlock_abi >= 1
    assert walls.uid == (child.NOBODY if os.geteuid() == 0 else os.geteuid())


REFUSED = {
    "read a file": "return names['open']('/etc/passwd').read()",
    "read by descriptor": "return os.open('/proc/self/environ', os.O_RDONLY)",
    "list the root": "return os.listdir('/')",
    "look at a file": "return os.stat('/etc/passwd').st_size",
    "change directory": "os.chdir('/tmp')",
    "write a file": "os.open('/tmp/escaped', os.O_WRONLY | os.O_CREAT)",
    "make a directory": "os.mkdir('/tmp/escaped')",
    "delete": "os.unlink('/tmp/anything')",
    "link": "os.symlink('/etc/passwd', '/tmp/escaped')",
    "chmod": "os.chmod('/etc/passwd', 0o777)",
    "utime": "os.utime('/etc/passwd')",
    "open a socket": "socket.socket()",
    "open a local socket": "socket.socket(socket.AF_UNIX)",
    "fork": "os.fork()",
    "execute": "os.execv('/bin/true', ['true'])",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "signal the parent": "os.kill(os.getppid(), 9)",
    "become root": "os.setuid(0)",
    "wait": "sys.modules['time'].sleep(1)",
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_reason(body: str) -> None:
    """Seccomp answers EPERM, which Python words as `Operation not permitted`."""
    # `open` is a builtin, reached through any module that was not built by the sandbox.
    body = body.replace("names['open']", "names['__builtins__']['open']")
    with pytest.raises(UnsafeStrategy, match=r"tried what it may not: PermissionError.*line \d+"):
        attack(body)
    assert not Path("/tmp/escaped").exists()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(425, id="io_uring"),
        pytest.param(0x40000002, id="x32 open"),
        pytest.param(101, id="ptrace"),
        pytest.param(160, id="setrlimit"),
    ],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_raw_system_calls_are_refused(number: int) -> None:
    assert attack(f"return [libc.syscall({number}, 0, 0, 0), ctypes.get_errno()]") == [-1, 1]


def test_executable_memory_is_refused() -> None:
    """mmap(NULL, 4096, READ|WRITE|EXEC, PRIVATE|ANONYMOUS) answers MAP_FAILED; without EXEC it works."""
    call = "libc.mmap.restype = ctypes.c_long; return [libc.mmap(0, 4096, {}, 34, -1, 0) == -1]"
    assert attack(call.format(7)) == [True]
    assert attack(call.format(3)) == [False]


def test_a_subprocess_is_refused() -> None:
    """`subprocess` is not loaded, and importing it would read a file."""
    with pytest.raises(
        UnsafeStrategy, match=r"Operation not permitted|No module named 'subprocess'"
    ):
        attack("sys.modules['importlib'].import_module('subprocess').run(['true'])")


def test_a_thread_is_refused() -> None:
    with pytest.raises(UnsafeStrategy, match="can't start new thread"):
        attack("sys.modules['_thread'].start_new_thread(print, ())")


def test_the_environment_is_empty() -> None:
    assert attack("return sorted(os.environ)") in (
        ["PYTHONHASHSEED"],
        ["LC_CTYPE", "PYTHONHASHSEED"],
    )


def test_only_the_three_pipes_are_open() -> None:
    """fstat on descriptors 0 to 31: everything above 2 is closed."""
    body = (
        "return [fd for fd in range(32) if libc.lseek(fd, 0, 1) != -1 or ctypes.get_errno() != 9]"
    )
    assert attack(body) == [0, 1, 2]


def test_memory_is_limited() -> None:
    with pytest.raises(UnsafeStrategy, match="over its memory limit"):
        attack("return len(bytearray(600 * 1024 * 1024))")


def test_an_endless_loop_is_stopped() -> None:
    began = time.monotonic()
    with pytest.raises(UnsafeStrategy, match="after 1 s of processor time"):
        attack("while True: pass", Limits(cpu_s=1, wall_s=20, num_runs=1))
    assert time.monotonic() - began < 10


def test_ignoring_the_warning_does_not_help() -> None:
    body = "signal = sys.modules['signal']; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n    while True: pass"
    with pytest.raises(UnsafeStrategy, match="processor time with the warning ignored"):
        attack(body, Limits(cpu_s=1, wall_s=20, num_runs=1))


def children() -> set[str]:
    """Processes that this thread started and that are still there, zombies included."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_a_strategy_that_hangs_is_stopped_and_leaves_nothing() -> None:
    """A lock taken twice uses no processor time, so only the wall clock sees it."""
    before = children()
    body = "lock = sys.modules['_thread'].allocate_lock(); lock.acquire(); lock.acquire()"
    with pytest.raises(UnsafeStrategy, match=r"after 0\.5 s of wall time"):
        attack(body, Limits(wall_s=0.5, num_runs=1))
    assert children() <= before


@pytest.mark.parametrize("descriptor", [1, 2])
def test_huge_output_is_stopped(descriptor: int) -> None:
    with pytest.raises(UnsafeStrategy, match="after 1 MB of output"):
        attack(f"while True: os.write({descriptor}, b'x' * 100000)")


def test_printing_does_not_disturb_the_answer() -> None:
    assert (
        run_strategy(
            "def curate(corpus, ctx):\n    print('hello')\n    return 1\n", {}, Context(), SMALL
        )
        == 1
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os.write(1, b'nonsense'); os._exit(0)", "not one line of JSON"),
        ("os.write(1, b'[' * 90000); os._exit(0)", "not one line of JSON"),
        ("os.write(1, b'{}'); os._exit(0)", "not of the sandbox"),
        ("os._exit(3)", "exit status 3"),
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("raise SystemExit(0)", "SystemExit"),
        ("return {1, 2}", "not JSON serializable"),
        ("return float('nan')", "Out of range float"),
        ("return corpus['absent']", r"KeyError: 'absent' \(line 8\)"),
    ],
)
def test_a_bad_end_is_told(body: str, message: str) -> None:
    with pytest.raises(UnsafeStrategy, match=message):
        attack(body)


@pytest.mark.parametrize(
    "body",
    ["id(object())", "datetime.datetime.now().isoformat()", "hash(object())"],
)
def test_what_is_not_deterministic_is_refused(body: str) -> None:
    source = f"import datetime\ndef curate(corpus, ctx):\n    return {body}\n"
    with pytest.raises(UnsafeStrategy, match="not deterministic"):
        run_strategy(source, {}, Context(), Limits(cpu_s=2, wall_s=20))


def test_hashes_and_unseeded_draws_are_the_same_in_every_run() -> None:
    """A set of texts comes out in one order because the hash seed is fixed; `random` is seeded by the host."""
    source = (
        "import random\n"
        "def curate(corpus, ctx):\n"
        "    return [list({'a', 'b', 'c', 'd', 'e', 'f'}), hash('x'), random.random()]\n"
    )
    first = run_strategy(source, {}, Context(seed=1), Limits(num_runs=3))
    assert run_strategy(source, {}, Context(seed=2), SMALL)[:2] == first[:2]
    assert run_strategy(source, {}, Context(seed=2), SMALL)[2] != first[2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\ndef curate(corpus, ctx): pass\n", "line 1: cannot import 'os'"),
        ("from . import x\ndef curate(corpus, ctx): pass\n", "cannot import '.'"),
        (
            "from subprocess import run\ndef curate(corpus, ctx): pass\n",
            "cannot import 'subprocess'",
        ),
        ("def curate(corpus, ctx):\n    return eval('1')\n", "line 2: 'eval' is not available"),
        (
            "def curate(corpus, ctx):\n    return __import__('os')\n",
            "'__import__' is not available",
        ),
        ("def curate(corpus, ctx):\n    return ().__class__\n", "attribute '__class__' is private"),
        (
            "import random\ndef curate(corpus, ctx):\n    return random._os\n",
            "attribute '_os' is private",
        ),
        ("def curate(corpus):\n    return 1\n", r"no function `curate\(corpus, ctx\)`"),
        ("def curate(corpus, ctx:\n", "not valid Python"),
        ("def curate(corpus, ctx):\n    return '\0'\n", "not valid Python"),
        ("(" * 3000 + ")" * 3000, "not valid Python"),
        ("def curate(corpus, ctx):\n    pass\n" + "\n" * 800, "802 lines; at most 800"),
    ],
)
def test_the_lint_says_what_and_where(source: str, message: str) -> None:
    with pytest.raises(UnsafeStrategy, match=message):
        run_strategy(source, {}, Context(), SMALL)


# --- the walls one by one ---------------------------------------------------------------------------------------------


def in_fresh_process(code: str) -> str:
    """Output of code run beside the child's functions, in an interpreter that may be locked for good."""
    prelude = (
        f"import sys, os, ctypes; sys.path.insert(0, {str(CHILD.parent)!r})\n"
        "import _sandbox_child as child\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def errno_of(attempt):\n"
        "    try:\n        attempt()\n"
        "    except OSError as error:\n        return error.errno\n"
        "def no_privileges():\n"
        "    child.call(libc, 'prctl', 38, 1, 0, 0, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-c", prelude + code],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_landlock_alone_closes_files() -> None:
    """Landlock answers EACCES (13) where seccomp would answer EPERM (1)."""
    code = "no_privileges(); child.restrict_files(libc)\nprint(errno_of(lambda: os.listdir('/')))"
    assert in_fresh_process(code) == "13"


def test_seccomp_alone_closes_files_and_sockets() -> None:
    code = (
        "import platform, socket\nno_privileges(); child.restrict_calls(libc, platform.machine())\n"
        "print(errno_of(lambda: os.listdir('/')), errno_of(socket.socket))\n"
        "sys.stdout.flush(); os._exit(0)"
    )
    assert in_fresh_process(code) == "1 1"


def test_a_normal_user_is_locked_in_as_well() -> None:
    """Nobody to become: the user stays, all other walls stand."""
    code = (
        "child.preload()  # the library may lie where only root reads\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setresgid(999, 999, 999); os.setresuid(999, 999, 999)\n"
        "walls = child.lock_in(5, 512)\nprint(walls['uid'] != child.NOBODY, walls['seccomp'])\n"
        "sys.stdout.flush(); os._exit(0)"
    )
    assert in_fresh_process(code) == "True True"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can stay root")
def test_root_that_cannot_change_users_is_locked_in_as_well() -> None:
    """A container that dropped every capability: uid 0 stays, and the other walls hold it."""
    code = (
        "header = (ctypes.c_uint32 * 2)(0x20080522, 0)\n"
        "child.call(libc, 'capset', header, (ctypes.c_uint32 * 6)())\n"
        "print(child.lock_in(5, 512)['uid'], errno_of(lambda: os.chmod('/etc/passwd', 0o777)))\n"
        "sys.stdout.flush(); os._exit(0)"
    )
    assert in_fresh_process(code) == "0 1"


def test_without_landlock_nothing_runs() -> None:
    """A kernel without Landlock, imitated by a filter that answers ENOSYS (38) to its first call (444)."""
    code = (
        "import struct\nno_privileges()\n"
        "rows = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x00050000 | 38), (6, 0, 0, 0x7FFF0000)]\n"
        "code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *row) for row in rows))\n"
        "program = struct.pack('HxxxxxxP', len(rows), ctypes.addressof(code))\n"
        "child.call(libc, 'prctl', 22, 2, program, 0, 0)\n"
        "try: child.lock_in(5, 512)\n"
        "except child.NoBoundary as error: print(error)\n"
    )
    assert in_fresh_process(code) == "Landlock: Function not implemented"


def test_without_seccomp_nothing_runs() -> None:
    with pytest.raises(child.NoBoundary, match="no list of system calls for 'riscv64'"):
        child.restrict_calls(None, "riscv64")


def test_a_filter_with_a_hole_is_noticed() -> None:
    """This process is not locked in, so the proof must fail."""
    with pytest.raises(child.NoBoundary, match="a directory was opened"):
        child.prove()


def test_a_missing_wall_is_an_unsafe_strategy() -> None:
    with pytest.raises(
        UnsafeStrategy, match=r"no strategy can run on this machine.*Landlock: absent"
    ):
        _read(b'{"failed": "no_boundary", "reason": "Landlock: absent"}')


def verdict(machine: str, arch: int, number: int, protection: int = 0) -> int:
    """The answer of the filter, by executing its rows: load, jump if equal, jump if any bit, answer."""
    data = {0: number, 4: arch, 32: protection}
    rows, place, loaded = child.seccomp_program(machine), 0, 0
    while True:
        code, if_true, if_false, constant = rows[place]
        if code == 0x06:
            return constant
        if code == 0x20:
            loaded, place = data[constant], place + 1
            continue
        hit = loaded == constant if code == 0x15 else bool(loaded & constant)
        place += 1 + (if_true if hit else if_false)


@pytest.mark.parametrize(
    ("machine", "arch", "read", "refused", "mmap"),
    [
        ("x86_64", 0xC000003E, 0, (2, 257, 41, 56, 57, 59, 62, 435, 0x40000000), 9),
        ("aarch64", 0xC00000B7, 63, (56, 198, 220, 221, 129, 435, 0), 222),
    ],
)
def test_the_filter_row_by_row(
    machine: str, arch: int, read: int, refused: tuple[int, ...], mmap: int
) -> None:
    """Refused: open, openat, socket, clone, fork, execve, kill, clone3, and read of the x32 table.

    PROT_READ | PROT_WRITE is 3 and PROT_EXEC is 4.
    """
    allow, deny, kill = 0x7FFF0000, 0x00050001, 0x80000000
    assert verdict(machine, arch, read) == allow
    assert {verdict(machine, arch, number) for number in refused} == {deny}
    assert verdict(machine, arch, mmap, 3) == allow
    assert verdict(machine, arch, mmap, 7) == deny
    assert verdict(machine, 0x40000003, read) == kill

"""The process that a curation strategy runs in: give everything up, prove it, then execute.

Started by `_sandbox.py` as a file of its own, so it imports the standard library alone. Order: import every module that
a strategy may use, set limits, become nobody, apply Landlock (no file at all), apply seccomp (an allow-list of 26
system calls that reach memory and the three pipes and nothing else), try to get out, and only then read the program.
What cannot be had is reported as `no_boundary` and nothing runs.

    in    one JSON line: {"source": text, "corpus": {...}, "context": {"seed", "budget", "failures"}}
    out   one JSON line: {"ok": value} or {"failed": kind, "reason": text}

Our choice: seccomp refuses with EPERM instead of killing, so a refused strategy can say what it tried; threads are
refused along with processes, because a strategy with threads is not deterministic.
"""

import builtins
import ctypes
import importlib
import json
import os
import platform
import random
import resource
import signal
import socket
import struct
import sys
import types

ALLOWED_MODULES = (
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "difflib",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "random",
    "re",
    "statistics",
    "string",
    "typing",
)
REFUSED_NAMES = frozenset(
    [
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "eval",
        "exec",
        "getattr",
        "globals",
        "input",
        "locals",
        "open",
        "setattr",
        "vars",
    ]
)
NOBODY = 65534

# What the allowed modules import on first use, from C through the strategy's own `import`; no file can be read later.
_LAZY_MODULES = ("_strptime", "collections.abc", "encodings.ascii", "encodings.latin_1")
_LAZY_MODULES += ("encodings.utf_16", "fractions", "time", "unicodedata")

# System calls that stay, by number.
#   memory    read write close fstat lseek munmap brk mremap madvise writev
#   process   rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack sched_yield getpid gettid futex getrusage
#             gettimeofday clock_gettime restart_syscall exit exit_group
#   mapping   mmap mprotect, unless for executable memory
_CALLS = {
    "x86_64": {
        "arch": (0xC000003E,),
        "memory": (0, 1, 3, 5, 8, 11, 12, 25, 28, 20),
        "process": (13, 14, 15, 131, 24, 39, 186, 202, 98, 96, 228, 219, 60, 231),
        "mapping": (9, 10),
    },
    "aarch64": {
        "arch": (0xC00000B7,),
        "memory": (63, 64, 57, 80, 62, 215, 214, 216, 233, 66),
        "process": (134, 135, 139, 132, 124, 172, 178, 98, 165, 169, 113, 128, 93, 94),
        "mapping": (222, 226),
    },
}
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446


class NoBoundary(Exception):
    """A wall that this machine does not have."""


def call(libc, name, *arguments):
    """A libc function that answers -1 on failure."""
    answer = getattr(libc, name)(*arguments)
    if answer == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def preload():
    """Import all that a strategy can ask for, while files can still be read."""
    for name in (*ALLOWED_MODULES, *_LAZY_MODULES):
        importlib.import_module(name)


def limit(cpu_s, memory_mb):
    """Processor time, memory, descriptors, files, core dumps."""
    memory = memory_mb * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become_nobody(libc):
    """Leave uid 0 and all capabilities; a user who is not root stays who he is.

    A container without the right to change users keeps uid 0 here, stripped of every capability.
    """
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError:
            header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # capability version 3, this process
            call(libc, "capset", header, (ctypes.c_uint32 * 6)())
    # Changing the uid clears the parent-death signal, so it is asked for afterwards.
    call(libc, "prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    call(libc, "prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def restrict_files(libc):
    """Landlock with no rule at all: no file, no directory, no TCP port, no signal out. Returns the ABI."""
    try:
        abi = call(libc, "syscall", _LANDLOCK_CREATE, None, 0, 1)
        num_rights = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
        rights = struct.pack("QQQ", (1 << num_rights) - 1, 3 * (abi >= 4), 3 * (abi >= 6))
        size = 24 if abi >= 6 else 16 if abi >= 4 else 8
        ruleset = call(libc, "syscall", _LANDLOCK_CREATE, rights, ctypes.c_size_t(size), 0)
        call(libc, "syscall", _LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)
    except OSError as error:
        raise NoBoundary(f"Landlock: {error.strerror}") from error
    return abi


def seccomp_program(machine):
    """The filter as (code, jump if true, jump if false, constant) rows.

    Rows in order: kill another architecture; mmap and mprotect pass unless they ask for executable memory; the plain
    calls pass; all else answers EPERM. x32 numbers have bit 30 set and so are on no list.
    """
    calls = _CALLS[machine]
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    plain, mapping = (*calls["memory"], *calls["process"]), calls["mapping"]
    rows = [(load, 0, 0, 4), (equal, 1, 0, calls["arch"][0]), (answer, 0, 0, 0x80000000)]
    rows.append((load, 0, 0, 0))
    listed = [(number, False) for number in plain] + [(number, True) for number in mapping]
    for place, (number, is_mapping) in enumerate(listed):
        to_refuse = len(listed) - place - 1
        rows.append((equal, to_refuse + (1 if is_mapping else 4), 0, number))
    rows.append((answer, 0, 0, 0x00050000 | 1))  # EPERM
    rows.append((load, 0, 0, 32))  # low half of the third argument: the protection
    rows.append((any_bit, 0, 1, 4))  # PROT_EXEC
    rows.append((answer, 0, 0, 0x00050000 | 1))
    rows.append((answer, 0, 0, 0x7FFF0000))
    return rows


def restrict_calls(libc, machine):
    """The seccomp filter, for good."""
    if machine not in _CALLS:
        raise NoBoundary(f"seccomp: no list of system calls for {machine!r}")
    rows = seccomp_program(machine)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code))
    try:
        call(libc, "prctl", _PR_SET_SECCOMP, 2, program, 0, 0)
    except OSError as error:
        raise NoBoundary(f"seccomp: {error.strerror}") from error


def prove():
    """Try to get out; whoever succeeds is not locked in."""
    for what, attempt in (
        ("a directory was opened", lambda: os.open("/", os.O_RDONLY)),
        ("a socket was made", lambda: socket.socket()),
        ("a process was made", lambda: os.fork() or os._exit(0)),
        ("a signal was sent", lambda: os.kill(os.getppid(), 0)),
    ):
        try:
            attempt()
        except OSError:
            continue
        raise NoBoundary(f"{what} in spite of the filter")


def lock_in(cpu_s, memory_mb):
    """All walls, in the one order that works. Returns what stands."""
    libc = ctypes.CDLL(None, use_errno=True)
    preload()
    limit(cpu_s, memory_mb)
    become_nobody(libc)
    uid = os.geteuid()
    abi = restrict_files(libc)
    restrict_calls(libc, platform.machine())
    prove()
    return {"landlock_abi": abi, "seccomp": True, "uid": uid}


def friendly_import(name, globals_=None, locals_=None, fromlist=(), level=0):
    """`import` for strategies: the allowed modules, all of them loaded before."""
    if level or (name.split(".")[0] not in ALLOWED_MODULES and name not in _LAZY_MODULES):
        raise ImportError(f"a strategy cannot import {name!r}")
    return importlib.__import__(name, globals_, locals_, fromlist, level)


def run(request):
    """Execute a strategy. Returns the value of its `curate`."""
    names = {key: value for key, value in vars(builtins).items() if key not in REFUSED_NAMES}
    names["__import__"] = friendly_import
    space = {"__builtins__": names, "__name__": "strategy"}
    context = request["context"]
    random.seed(context["seed"])
    exec(compile(request["source"], "<strategy>", "exec"), space)
    rng = random.Random(context["seed"])
    return space["curate"](request["corpus"], types.SimpleNamespace(rng=rng, **context))


def line_of(error):
    """The last line of the strategy that the error passed through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<strategy>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def answer_to(request):
    """The line to send back. A strategy may raise anything, so everything is caught."""
    try:
        return json.dumps({"ok": run(request)}, sort_keys=True, allow_nan=False)
    except MemoryError:
        return json.dumps({"failed": "memory", "reason": "out of memory"})
    except BaseException as error:
        reason = f"{type(error).__name__}: {str(error)[:500]} (line {line_of(error)})"
        kind = "denied" if isinstance(error, PermissionError) else "error"
        return json.dumps({"failed": kind, "reason": reason})


def main():
    try:
        walls = lock_in(int(sys.argv[1]), int(sys.argv[2]))
    except NoBoundary as error:
        line = json.dumps({"failed": "no_boundary", "reason": str(error)})
    else:
        request = json.loads(sys.stdin.buffer.readline())
        # What a strategy prints must not mix with the answer.
        answers, sys.stdout = sys.stdout, sys.stderr
        line = json.dumps({"ok": walls}) if request is None else answer_to(request)
        sys.stdout = answers
    left = (line + "\n").encode("ascii")
    while left:
        left = left[os.write(1, left) :]
    os._exit(0)


if __name__ == "__main__":
    main()

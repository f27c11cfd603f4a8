"""The kernel's means of confinement, by ctypes: namespaces, Landlock, capabilities, limits.

Each function does one thing to the calling process and raises OSError where the kernel refuses.
Which of them make a tier is `tiers`' business; system call filters are `seccomp`'s.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import resource
import struct
from collections.abc import Iterable
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MOST_PIDS = 4096
ALL_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 4, 38, 36

# The same on every architecture that got them after 5.1.
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_CAPSET = {"x86_64": 126, "aarch64": 91}
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1

# Landlock's rights over files that rules name here, by their bits.
_EXECUTE, _READ_FILE, _READ_DIR = 1, 4, 8
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights each version knows
_FILE_RIGHTS = 0b1100000000000111  # those a rule on a plain file may carry

_libc = ctypes.CDLL(None, use_errno=True)
_python_libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock over the call


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments), what)


def fork_plainly() -> int:
    """fork(2) without Python's hooks, for a process without threads: a third of the page faults."""
    return _check(_python_libc.fork(), "fork")


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def prctl_pointer(option: int, mode: int, address: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(mode), ctypes.c_void_p(address)), f"prctl {option}")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent`, its parent, is gone."""
    prctl(PR_SET_PDEATHSIG, 9)
    if os.getppid() not in (parent, 0):  # 0: the parent is outside this pid namespace
        os._exit(1)


def run_first() -> None:
    """Be scheduled before all ordinary processes, where the kernel allows it; children are too.

    Root is exempt from the limit on processes: nothing else gets a turn beside its fork bomb. Who
    may not do this has that limit.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def run_ordinarily() -> None:
    """Undo `run_first`, for this process and its children."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def enter_namespaces() -> None:
    """New user, mount, pid, net, ipc and uts namespaces; the next fork becomes init."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(ALL_NAMESPACES), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def bound_pids() -> None:
    """At most MOST_PIDS processes in this process's own pid namespace, where the kernel counts them
    by namespace; before 6.14 the number would be the whole machine's, and is left alone."""
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if release >= (6, 14):
        with contextlib.suppress(OSError):  # a /proc that may not be written
            Path("/proc/sys/kernel/pid_max").write_text(str(MOST_PIDS))


def mount_tmpfs(target: str, megabytes: int, inodes: int = 4096) -> None:
    options = f"size={megabytes}m,nr_inodes={inodes},mode=700".encode()
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    result = _libc.mount(b"scratch", os.fsencode(target), b"tmpfs", flags, options)
    _check(result, f"mount a tmpfs on {target}")


def detach_mount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def make_mounts_private() -> None:
    flags = ctypes.c_ulong(MS_REC | MS_PRIVATE)
    _check(_libc.mount(b"none", b"/", None, flags, None), "make the mounts private")


def make_mounts_read_only() -> None:
    """Every mount of this namespace, with those below it."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    _syscall(
        "mount_setattr", _MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, len(attributes)
    )


def drop_capabilities() -> None:
    """Empty the permitted, effective and inheritable sets."""
    header = struct.pack("Ii", 0x20080522, 0)
    _syscall("capset", _CAPSET[platform.machine()], header, bytes(24))


def landlock_abi() -> int:
    """The version of Landlock, 0 where the kernel has none."""
    return max(0, _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, 0, 1))


def landlock_ruleset(
    readable: Iterable[str], writable: Iterable[str], hidden: Iterable[str] = ()
) -> int:
    """A file descriptor of rules: read and execute below `readable`, anything below `writable`,
    and no file below `hidden`, wherever that lies.
    """
    abi = landlock_abi()
    handled = (1 << _RIGHTS_BY_ABI.get(abi, 16)) - 1
    fields = [handled, 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0]  # files, TCP, signals
    attributes = struct.pack(
        f"{3 if abi >= 6 else 2 if abi >= 4 else 1}Q", *fields[: 1 + (abi >= 4) + (abi >= 6)]
    )
    ruleset = _syscall("Landlock", _LANDLOCK_CREATE, attributes, len(attributes), 0)
    try:
        for path, whole in around(readable, hidden).items():
            reading = _EXECUTE | _READ_FILE | _READ_DIR
            _landlock_allow(ruleset, path, reading if whole else _READ_DIR)
        for path in writable:
            _landlock_allow(ruleset, path, handled)
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


def around(readable: Iterable[str], hidden: Iterable[str]) -> dict[str, bool]:
    """Paths that cover `readable` less what lies below `hidden`: True for one with all it holds,
    False for a folder that leads to a hidden one, which may only be listed.

    Rules can't take back what another gave, so the neighbours of a hidden folder are named instead.
    """
    left_out = {os.path.realpath(path) for path in hidden}
    found: dict[str, bool] = {}

    def add(path: str) -> None:
        place = os.path.realpath(path)  # a link may lead to a hidden folder too
        if place in found or any(_inside(place, folder) for folder in left_out):
            return
        found[place] = not any(_inside(folder, place) for folder in left_out)
        if not found[place]:
            for name in os.listdir(place):
                add(os.path.join(place, name))

    for path in readable:
        add(path)
    return found


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _landlock_allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # what isn't there, or can't be seen, needs no rule
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS & ((1 << _RIGHTS_BY_ABI.get(landlock_abi(), 16)) - 1)
        rule = struct.pack("=Qi", rights, place)
        _syscall(f"Landlock rule for {path}", _LANDLOCK_ADD, ruleset, 1, rule, 0)
    finally:
        os.close(place)


def landlock_restrict(ruleset: int) -> None:
    """Bind this process and its descendants to the rules, for good. Needs no_new_privs."""
    _syscall("Landlock", _LANDLOCK_RESTRICT, ruleset, 0)


def plan_limits(limits: dict[str, int]) -> list[tuple[int, tuple[int, int]]]:
    """Arguments of setrlimit from limits by name; "cpu" gets a second more before the hard kill."""
    planned = []
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        later = name == "cpu" and hard == resource.RLIM_INFINITY
        planned.append((number, (value, value + 1 if later else value)))
    return planned


def cpu_seconds(pid: int) -> float:
    """CPU time that a live or unreaped process has used, by its own CPU clock."""
    import time

    return time.clock_gettime((~pid << 3) | 2)

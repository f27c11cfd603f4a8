"""A system call filter: what rules about files can't hold, such as processes and sockets.

The filter answers "not permitted" and never kills, so that a program which tries meets an ordinary
OSError. `build_filter` gives None on an architecture whose numbers aren't listed here.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from functools import lru_cache

from santagen.evaluation.sandbox import linux

# name: (x86_64, aarch64); None where the architecture never had it.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435),
    "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tgkill": (234, 131), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "prlimit64": (302, 261),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272),
    "socket": (41, 198), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "personality": (135, 92), "syslog": (103, 116),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
_OWN_PROCESS_ONLY = ("kill", "tgkill", "prlimit64")
# What the commands of other languages need and a Python function doesn't.
_FOR_COMMANDS = frozenset(
    ("fork", "vfork", "execve", "execveat", "kill", "tgkill", "tkill",
     "prlimit64", "personality", "chmod", "fchmod", "fchmodat", "fchmodat2", "utimensat",
     "pidfd_open", "pidfd_send_signal")
)  # fmt: skip

_ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NO_SUCH_CALL = 0x00050000 | errno.ENOSYS
_CLONE_THREAD, _NEW_NAMESPACES = 0x00010000, 0x7E020000
_SECCOMP, _FILTER = 22, 2

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NR, _ARCH_AT, _ARG0 = 0, 4, 16
_OWN_PID = 0x5A4E7AE5  # no pid is this large: stands for the process in a filter made ahead


def build_filter(pid: int, commands: bool = False) -> bytes | None:
    """The BPF program for the process `pid`. `commands` allows child processes."""
    template = _template(commands)
    if template is None:
        return None
    return template.replace(struct.pack("I", _OWN_PID), struct.pack("I", pid))


@lru_cache
def _template(commands: bool) -> bytes | None:
    if platform.machine() not in _ARCH:
        return None
    arch, column = _ARCH[platform.machine()]
    code = [
        (_LOAD, 0, 0, _ARCH_AT), (_JUMP_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
        # The x32 numbers would go round every rule below.
        (_JUMP_ABOVE, 0, 1, 0x3FFFFFFF), (_RETURN, 0, 0, _DENY),
    ]  # fmt: skip
    for name, numbers in _NUMBERS.items():
        number = numbers[column]
        if number is None or (commands and name in _FOR_COMMANDS):
            continue
        if name == "clone":
            # A command may start processes but no namespaces; a function may start threads only.
            allowed = (
                (_JUMP_SET, 0, 1, _NEW_NAMESPACES) if commands else (_JUMP_SET, 1, 0, _CLONE_THREAD)
            )
            code += [(_JUMP_EQUAL, 0, 5, number), (_LOAD, 0, 0, _ARG0), allowed]
            code += [(_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _NR)]
        elif name == "clone3":  # its flags lie in memory: the C library falls back to clone
            code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NO_SUCH_CALL)]
        elif name in _OWN_PROCESS_ONLY:
            own = 1 if name == "prlimit64" else 0  # prlimit64 means oneself by 0
            code += [(_JUMP_EQUAL, 0, 4 + own, number), (_LOAD, 0, 0, _ARG0)]
            code += [(_JUMP_EQUAL, 2, 0, 0)] if own else []
            code += [(_JUMP_EQUAL, 1, 0, _OWN_PID), (_RETURN, 0, 0, _DENY), (_RETURN, 0, 0, _ALLOW)]
        else:
            code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in code)


def install(program: bytes) -> None:
    """Filter this process and its descendants from now on. Needs no_new_privs."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    place = ctypes.create_string_buffer(header, len(header))
    linux.prctl_pointer(_SECCOMP, _FILTER, ctypes.addressof(place))

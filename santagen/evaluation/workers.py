"""One worker process from the scorer's side, the limits it imposes, and the search for a tier.

Starts and ends processes; which test runs where is `execution`'s business.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from santagen.errors import SantagenError
from santagen.evaluation.sandbox import frames, tiers


@dataclass(frozen=True)
class Limits:
    """What one program may use: bytes, counts of files and processes, MiB of scratch space."""

    memory: int = 1 << 30
    file_size: int = 16 << 20
    open_files: int = 64
    processes: int = 64
    scratch_megabytes: int = 64

    def for_mode(self, mode: str, timeout: float) -> dict[str, int]:
        """rlimits by name. Other languages' runtimes reserve more memory than they use."""
        memory = {"data": max(self.memory, 2 << 30)} if mode == "command" else {"as": self.memory}
        return {
            **memory,
            "cpu": math.ceil(timeout) + 1,
            "fsize": self.file_size,
            "nofile": self.open_files,
            "core": 0,
            "nproc": self.processes if mode != "command" else 512,
            "memlock": 0,
        }


@dataclass(frozen=True)
class Sandbox:
    """The tier in use, what is in force in it, and why stronger ones are not."""

    tier: str
    features: dict[str, bool]
    refused: dict[str, str] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return {"tier": self.tier, **self.features, "refused": self.refused}


class WorkerProcess:
    """One worker from this side of its pipes."""

    def __init__(self, tier: str, limits: Limits, readable: Sequence[str] = ()) -> None:
        # Made and removed here as well: a worker that is killed can't clean up.
        self.scratch = tempfile.mkdtemp(prefix="santagen-eval-")
        self.process = subprocess.Popen(
            tiers.python_command("worker", "main()"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=tiers.environment(tempfile.gettempdir()),
            cwd="/",
        )
        self._write(
            {
                "tier": tier,
                "readable": tiers.readable_paths(tuple(readable)),
                "hidden": tiers.hidden_paths(),
                "scratch": self.scratch,
                "scratch_megabytes": limits.scratch_megabytes,
            }
        )
        try:
            self.said = self._read()
        except (frames.Closed, frames.Garbage):
            self.said = {"refused": self._last_words()}

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        self._write(job)
        return self._read()

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its zygote dies with it
            self.process.wait()
        self.process.stdout.close()
        if self.process.stderr is not None:
            self.process.stderr.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            frames.write_pipe(self.process.stdin.fileno(), message)
        except OSError as error:
            raise frames.Closed(str(error)) from None

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(frames.read_pipe(self.process.stdout.fileno()))

    def _last_words(self) -> str:
        self.process.kill()
        said = self.process.communicate()[1].decode("utf-8", "replace").strip()
        return said.splitlines()[-1] if said else "the worker ended at once"


def find_sandbox(
    limits: Limits, *, unsafe: bool = False, tier: str | None = None, readable: Sequence[str] = ()
) -> tuple[Sandbox, WorkerProcess]:
    """The strongest tier that works here (or `tier`), with its first worker already running.

    Raises SantagenError where only the plain tier works and `unsafe` is false.
    """
    if tier is not None and tier not in tiers.TIERS:
        raise SantagenError(
            f"Sandbox tier {tier} is not known.", f"Choose one of {', '.join(tiers.TIERS)}."
        )
    refused: dict[str, str] = {}
    for name in tiers.TIERS if tier is None else (tier,):
        if name == "plain" and not unsafe:
            reasons = f" ({_listed(refused)})" if refused else ""
            raise SantagenError(
                f"Model-written programs can't be confined here{reasons}.",
                "Install bubblewrap, allow user namespaces, or accept limits only with --unsafe.",
            )
        refused[name] = tiers.obstacle(name)
        if refused[name]:
            continue
        worker = WorkerProcess(name, limits, readable)
        if "ready" in worker.said:
            del refused[name]
            return Sandbox(name, worker.said["ready"], refused), worker
        refused[name] = str(worker.said["refused"])
        worker.close()
    raise SantagenError(
        f"No sandbox works here ({_listed(refused)}).",
        "Run on Linux, with user namespaces or bubblewrap.",
    )


def _listed(refused: dict[str, str]) -> str:
    return "; ".join(f"{tier}: {why}" for tier, why in refused.items())

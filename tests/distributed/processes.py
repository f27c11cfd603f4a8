"""Runs `santagen` as several ranks on this machine, without torchrun and without waiting for torch.

Ranks are forked from a server process that has imported everything once. They find each other as
under torchrun, by their environment; rank 0 hosts the store.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

TIMEOUT = 120
PRELOAD = ["santagen.cli.ranks", "santagen.llm", "santagen.parallel.cluster", __name__]


def server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def environment(rank: int, size: int, port: int, **changes: str) -> dict[str, str]:
    """What torchrun sets, for one node."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1", **changes,
    }  # fmt: skip


@dataclass
class Ranks:
    """Running ranks; `wait` ends them all."""

    processes: list[BaseProcess]
    folder: Path

    def wait(self, timeout: float = TIMEOUT) -> list[int]:
        """The exit codes; minus the signal's number where one was killed."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        for rank in late:
            self.processes[rank].kill()
            self.processes[rank].join()
        assert not late, f"ranks {late} did not end within {timeout} s\n{self.err}"
        return [int(process.exitcode or 0) for process in self.processes]

    def text(self, rank: int) -> str:
        return (self.folder / f"{rank}.err").read_text()

    @property
    def err(self) -> str:
        """What all ranks said."""
        return "".join(self.text(rank) for rank in range(len(self.processes)))


def start(
    size: int,
    *arguments: str | Path,
    before: Mapping[int, str] | None = None,
    changes: Mapping[int, Mapping[str, str]] | None = None,
    port: int | None = None,
    ranks: range | None = None,
) -> Ranks:
    """Start `santagen ARGUMENTS` as `size` ranks.

    `before` names a function of tests.distributed.spoil that a rank calls first; `changes` are
    environment variables of a rank; `ranks` are those to start, by default all.
    """
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    port = port or free_port()
    processes = []
    for rank in ranks or range(size):
        own = environment(rank, size, port, **(changes or {}).get(rank, {}))
        process = server().Process(
            target=_rank,
            args=(own, list(map(str, arguments)), folder, (before or {}).get(rank)),
        )
        process.start()
        processes.append(process)
    return Ranks(processes, folder)


def together(size: int, function: str, *arguments: object) -> list[list[str]]:
    """Call tests.distributed.FUNCTION in `size` ranks; returns the lines that each returned."""
    module, _, name = function.rpartition(".")
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    port = free_port()
    processes = []
    for rank in range(size):
        own = environment(rank, size, port)
        target = (f"tests.distributed.{module}", name, arguments)
        process = server().Process(target=_call, args=(own, folder, *target))
        process.start()
        processes.append(process)
    ranks = Ranks(processes, folder)
    assert ranks.wait() == [0] * size, ranks.err
    return [(folder / f"{rank}.result").read_text().splitlines() for rank in range(size)]


def _call(
    own: dict[str, str], folder: Path, module: str, name: str, arguments: tuple[object, ...]
) -> None:
    os.environ.update(own)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(folder / f"{own['RANK']}.err", flags, 0o600), 2)
    lines: list[str] = getattr(importlib.import_module(module), name)(*arguments)
    (folder / f"{own['RANK']}.result").write_text("\n".join(lines))


def _rank(own: dict[str, str], arguments: list[str], folder: Path, before: str | None) -> None:
    os.environ.update(own)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for fd, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{own['RANK']}.{name}", flags, 0o600), fd)
    if before is not None:
        hook: Callable[[], None] = getattr(
            importlib.import_module("tests.distributed.spoil"), before
        )
        hook()
    from santagen.cli.app import run_program

    sys.exit(run_program(arguments))

"""The processes of one run, joined: a shared store, a tensor-parallel group each, one voice.

    join -> (checks that need every rank) -> connect -> ... -> leave

The store (torch's TCPStore) is all that groups share: no collective spans them, so 512 of them join
as easily as two. Only the ranks of one group hold a process group, `tensor_parallel`. Everything
that waits here polls, so that a signal ends it. Which rows go where is `row_queue`'s business.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from santagen.distributed import TensorParallel
from santagen.errors import SantagenError, first_line
from santagen.parallel.symmetric import symmetric_sum
from santagen.parallel.watch import BEAT_SECONDS, Watch
from santagen.parallel.world import World

JOIN_SECONDS = 300.0  # for the others to start: imports from a busy file system take their time
TEST_SECONDS = 60.0
COLLECTIVE_TIMEOUT = timedelta(hours=1)  # dead peers are noticed long before, by Watch
LEAVE_SECONDS = 30.0
POLL_SECONDS = 0.01
PREFIX = "santagen"
RANK_ZERO = "Rank 0 of this run"
LAUNCHER = "The process that started this run's ranks (santagen itself, or torchrun)"


class Cluster:
    """One rank's view of the run. Made by `join`; `tensor_parallel` is whole after `connect`."""

    def __init__(self, world: World, store: Any, watch: Watch, hosts_store: bool) -> None:
        self.world, self.store, self.watch, self.hosts_store = world, store, watch, hosts_store
        self.tensor_parallel = TensorParallel()
        self._spoke: bool | None = None
        self.meeting_point = RANK_ZERO  # in messages: the process that holds the store

    # -- starting ------------------------------------------------------------------------------

    @classmethod
    def join(cls, world: World, environment: Mapping[str, str]) -> Cluster:
        """Reach the store. Each rank that can't raises SantagenError; rank 0's is to be shown."""
        host, port = _address(environment)
        by_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        hosts_store = world.rank == 0 and not by_agent
        try:
            store, board = (
                dist.PrefixStore(PREFIX, _tcp_store(world, host, port, is_master))
                for is_master in (hosts_store, False)  # a connection of its own for the watch
            )
        except dist.DistNetworkError as error:
            raise _unreachable(host, port, error) from None
        cluster = cls(world, store, Watch(board, world.rank), hosts_store)
        cluster.meeting_point = LAUNCHER if by_agent else RANK_ZERO
        return cluster

    def meet(self) -> None:
        """Wait for every rank to join, refuse unequal nodes, and begin to watch."""
        world, store = self.world, self.store
        host = socket.gethostname()
        store.set(f"rank/{world.rank}", f"{world.local_size} {os.getpid()} {host}")
        keys = [f"rank/{rank}" for rank in range(world.size)]
        deadline = time.monotonic() + JOIN_SECONDS
        self.wait(lambda: store.check(keys) or time.monotonic() > deadline)
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        if missing:
            shown = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
            raise SantagenError(
                f"Of {world.size} ranks, {len(missing)} did not start within {JOIN_SECONDS:.0f} s "
                f"({shown}).",
                "Check that every node was started, with the same --nnodes and --rdzv-endpoint.",
            )
        found = [value.decode().split(" ", 2) for value in store.multi_get(keys)]
        local_sizes = sorted({int(size) for size, *_ in found})
        if len(local_sizes) > 1:
            raise SantagenError(
                "The nodes run different numbers of processes "
                f"({', '.join(map(str, local_sizes))}).",
                "Give every node the same --nproc-per-node.",
            )
        names = [f"rank {rank} (on {where})" for rank, (*_, where) in enumerate(found)]
        here = {rank: int(pid) for rank, (_, pid, where) in enumerate(found) if where == host}
        self.watch.start(names, here)

    def connect(self, device: torch.device) -> None:
        """Form this rank's tensor-parallel group, and try it out within TEST_SECONDS."""
        world = self.world
        if world.tensor_parallel == 1:
            return
        # NVLink multicast is off unless asked for: a fault in it takes the host's other GPUs along.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        if world.local_size == world.size:  # the host's own name may lead nowhere
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        self.barrier(f"connect{world.group}", world.tensor_parallel)
        self._in_time(lambda: self._form_group(device), device)

    def _in_time(self, body: Callable[[], None], device: torch.device) -> None:
        """Run `body` in a thread, since the libraries that it waits in answer to no signal."""
        failed: list[Exception] = []

        def run() -> None:
            try:
                body()
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="connect", daemon=True)
        thread.start()
        deadline = time.monotonic() + TEST_SECONDS
        self.wait(lambda: not thread.is_alive() or time.monotonic() > deadline)
        what = f"The {self.world.tensor_parallel} ranks of a tensor-parallel group"
        hint = _network_hint(device.type == "cuda")
        if thread.is_alive():
            raise SantagenError(f"{what} did not connect within {TEST_SECONDS:.0f} s.", hint)
        for error in failed:
            raise SantagenError(f"{what} can't connect: {first_line(error)}", hint) from error

    def _form_group(self, device: torch.device) -> None:
        """Connect for a trial that must end soon, then for the run."""
        if device.type == "cuda":
            torch.cuda.set_device(device)  # each thread has a current device of its own
        # The library's own clock never ends first: `_in_time` judges, and says how long it waited.
        self._init_group("trial", device, timedelta(seconds=2 * TEST_SECONDS))
        size, shard = self.world.tensor_parallel, self.world.shard
        for place in dict.fromkeys([torch.device("cpu"), device]):
            total = torch.full((1024,), shard + 1.0, device=place)
            dist.all_reduce(total)
            if total.tolist() != [size * (size + 1) / 2] * 1024:
                raise RuntimeError(f"a first all-reduce on {place} gave a wrong sum")
        dist.destroy_process_group()
        self._init_group("group", device, COLLECTIVE_TIMEOUT)
        same_host = self.world.local_size % size == 0  # a group's ranks follow one another
        # Not the group itself: one that something still holds at exit aborts the process.
        self.tensor_parallel = TensorParallel(
            shard, size, fast_sum=symmetric_sum(device, same_host)
        )

    def _init_group(self, name: str, device: torch.device, timeout: timedelta) -> None:
        world = self.world
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=dist.PrefixStore(f"{name}{world.group}", self.store),
            rank=world.shard,
            world_size=world.tensor_parallel,
            timeout=timeout,
        )

    # -- talking -------------------------------------------------------------------------------

    def publish(self, name: str, value: Any) -> None:
        """Let every rank `receive` a value."""
        self.store.set(name, pickle.dumps(value))

    def receive(self, name: str) -> Any:
        """Wait for what another rank publishes; for as long as the run is whole."""
        self.wait(lambda: self.store.check([name]))
        # Rows, numbers and settings of this run's own processes.
        return pickle.loads(self.store.get(name))

    def wait(self, done: Callable[[], bool]) -> None:
        """Poll until `done`."""
        while not done():
            time.sleep(POLL_SECONDS)

    def barrier(self, name: str, ranks: int) -> None:
        """Wait until `ranks` of the ranks have called this."""
        if self.store.add(f"{name}/count", 1) == ranks:
            self.store.set(name, "")
        self.wait(lambda: self.store.check([name]))

    def add(self, name: str, amount: int) -> int:
        """Add to a shared counter and return it, in one step."""
        return int(self.store.add(name, amount))

    # -- failing and ending --------------------------------------------------------------------

    def may_speak(self) -> bool:
        """Whether this rank is the one that says why the run ends: the first to ask."""
        if self._spoke is None:
            try:
                self._spoke = self._own_store().add("spoken", 1) == 1
            except Exception:  # the store's own errors share no narrower class
                # The store went with its host. Where a failure was told, it was told by then.
                told = self.watch.lost is not None and "store" not in self.watch.lost
                self._spoke = not told and self.world.local_rank == 0
        return self._spoke

    def has(self, name: str) -> bool:
        """Whether a value was published; False where the store is gone."""
        try:
            return bool(self._own_store().check([name]))
        except Exception:  # the store's own errors share no narrower class
            return False

    def gone(self) -> str | None:
        """As Watch.gone; None too where the store is gone."""
        try:
            return self.watch.gone(self._own_store())
        except Exception:  # the store's own errors share no narrower class
            return None

    def _own_store(self) -> Any:
        """The connection of this thread: the main one may wait in its own for ever."""
        main = threading.current_thread() is threading.main_thread()
        return self.store if main else self.watch.board

    def fail(self) -> None:
        """Have every other rank end."""
        self.watch.stop()
        self.watch.end_silent()
        try:
            self.store.set(f"beat/{self.world.rank}", "ended")
            if not self.store.check(["failed"]):  # the first says more
                self.store.set("failed", f"rank {self.world.rank} failed")
        except Exception:
            return  # they notice that the store is gone
        if self.hosts_store:
            time.sleep(2 * BEAT_SECONDS)  # let the others read it

    def leave(self) -> None:
        """End in order. Rank 0 stays until all have left: the store may be its own."""
        self.watch.stop()
        if dist.is_initialized():
            self.tensor_parallel = TensorParallel()
            gc.collect()  # CUDA graphs that hold collectives must go before the group does
            dist.destroy_process_group()
        rank, size = self.world.rank, self.world.size
        self.store.set(f"beat/{rank}", "left")
        if rank != 0:
            self.store.add("left", 1)
            return
        deadline = time.monotonic() + LEAVE_SECONDS
        self.wait(lambda: self.store.add("left", 0) == size - 1 or time.monotonic() > deadline)


def _address(environment: Mapping[str, str]) -> tuple[str, int]:
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        raise SantagenError(
            "WORLD_SIZE is set, but MASTER_ADDR and MASTER_PORT don't say where processes meet.",
            "Start them with torchrun, which sets all three; unset WORLD_SIZE to run one process.",
        )
    return host, int(port)


def _tcp_store(world: World, host: str, port: int, is_master: bool) -> Any:
    patience = timedelta(seconds=JOIN_SECONDS)
    return dist.TCPStore(host, port, world.size, is_master, patience, wait_for_workers=False)


def _unreachable(host: str, port: int, error: Exception) -> SantagenError:
    text = str(error)
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        return SantagenError(
            f"Port {port} of {host}, where the processes are to meet, is in use.",
            "Give another --master-port (MASTER_PORT), or use torchrun --standalone.",
        )
    return SantagenError(
        f"The processes can't meet at {host}, port {port}: {text.splitlines()[0]}",
        "Check that the address is right and that no firewall closes the port.",
    )


def _network_hint(cuda: bool) -> str:
    if cuda:
        return (
            "NCCL_DEBUG=INFO shows where it waits; NCCL_SOCKET_IFNAME names the network to use, "
            "and NCCL_P2P_DISABLE=1 avoids direct access between GPUs."
        )
    return "GLOO_SOCKET_IFNAME names the network to use, as in GLOO_SOCKET_IFNAME=eth0."


def _loopback() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")

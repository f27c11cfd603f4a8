"""What this device can do at best: bytes and FLOP a second, and the memory it has.

The best of several rounds counts, since a limit is what nothing should beat. Probes free what they
took before they return. Nothing here knows a model.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch

from santagen.bench.limit import Rates
from santagen.engine.memory import CPU_SHARE, available_ram

COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}  # beyond the caches
PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
CALLS = {"cpu": 1, "cuda": 10}  # a round: many launches, so that their start costs nothing
WARM_SECONDS = 0.1
ROUNDS = 7


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Copy and read a large buffer, multiply two large matrices of `dtype`."""
    rates = Rates(*_memory_rates(device), _product_rate(device, dtype))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return rates


def _memory_rates(device: torch.device) -> tuple[float, float]:
    """(copy, read) in bytes/s; a copy moves each byte twice."""
    size = COPY_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 8)
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / _least_seconds(lambda: target.copy_(source), device)
    return copied, source.nbytes / _least_seconds(source.sum, device)


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a square product of x W^T, the form of every product of the model."""
    n = PRODUCT_SIZE[device.type]
    x, weight = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(x)
    return 2 * n**3 / _least_seconds(lambda: torch.mm(x, weight.t(), out=out), device)


def _least_seconds(call: Callable[[], object], device: torch.device) -> float:
    """The time of one call in the best round."""

    def round_seconds() -> float:
        started = time.perf_counter()
        for _ in range(CALLS[device.type]):
            call()
        synchronize(device)
        return (time.perf_counter() - started) / CALLS[device.type]

    synchronize(device)
    warm_until = time.perf_counter() + WARM_SECONDS  # clocks rise under load
    round_seconds()
    while time.perf_counter() < warm_until:
        round_seconds()
    return min(round_seconds() for _ in range(ROUNDS))


def usable_memory(device: torch.device, utilization: float, weight_bytes: int) -> int:
    """Bytes that a run may take of this device: --gpu-memory-utilization's share, or on the CPU
    the weights and the engine's share of what they leave."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * utilization)
    free = available_ram()
    return min(free, weight_bytes + int(CPU_SHARE * max(0, free - weight_bytes)))


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


class PeakMemory:
    """The most memory in use since `reset`: allocated tensors on CUDA; on the CPU the process's
    resident memory since it began, which can't be reset."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

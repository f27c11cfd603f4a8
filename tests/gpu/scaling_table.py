"""How a run on several GPUs is divided, and the lines of the tables. Plain numbers, no torch."""

from __future__ import annotations

from typing import Any

STEP_COLUMNS = ("ms", "tok/s", "bound ms", "of bound", "gain", "of bounds")
DIVISION_COLUMNS = ("GPUs", "TP", "DP", "tok/s", "of linear", "seconds", "merge s", "whole s")


def tensor_parallel_sizes(gpus: int) -> list[int]:
    """8 -> 1, 2, 4, 8"""
    return [size for size in (1, 2, 4, 8) if size <= gpus]


def divisions(gpus: int) -> list[tuple[int, int]]:
    """(tensor-parallel size, groups): 8 -> (1, 1), (1, 2), (1, 4), (1, 8), (2, 4)."""
    half = [(2, gpus // 2)] if gpus > 1 else []
    return [(1, size) for size in tensor_parallel_sizes(gpus)] + half


def parallel_options(tensor_parallel: int, groups: int) -> list[str]:
    """What generate is given; nothing for one process."""
    sizes = (("-tp", tensor_parallel), ("-dp", groups))
    return [text for name, size in sizes if size > 1 for text in (name, str(size))]


def step_row(one: dict[str, float], step: dict[str, float]) -> tuple[str, ...]:
    """STEP_COLUMNS of a decode step beside that of one GPU; the last is the gain that the bounds
    allow."""
    seconds, bound = step["seconds"], step["bound"]
    return (
        f"{seconds * 1e3:.3f}", f"{step['batch'] / seconds:,.0f}", f"{bound * 1e3:.3f}",
        f"{bound / seconds:.0%}", f"{one['seconds'] / seconds:.2f}", f"{one['bound'] / bound:.2f}",
    )  # fmt: skip


def division_row(one: dict[str, Any], found: dict[str, Any]) -> tuple[str, ...]:
    """DIVISION_COLUMNS of a run beside that of one GPU, and the idle shares of its groups."""
    tensor_parallel, groups = found["tensor_parallel"], found["groups"]
    rate = found["tokens"] / found["seconds"]
    linear = tensor_parallel * groups * one["tokens"] / one["seconds"]
    idle = idle_shares(found["seconds_by_group"], found["seconds"])
    return (
        str(tensor_parallel * groups), str(tensor_parallel), str(groups), f"{rate:,.0f}",
        f"{rate / linear:.3f}", f"{found['seconds']:.2f}", f"{found['merge_seconds']:.3f}",
        f"{found['whole']:.1f}", " ".join(f"{share:.1%}" for share in idle),
    )  # fmt: skip


def idle_shares(seconds_by_group: list[float], seconds: float) -> list[float]:
    """The part of the run's `seconds` that each group had nothing left to do."""
    return [max(0.0, 1 - own / seconds) for own in seconds_by_group]

"""A small run of the writer, in this process or in one that is killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from santagen.io.output_place import errors_path
from santagen.io.writer import OutputWriter
from santagen.request import Request, RowFailure, SampleOutput, SamplingParams

IDENTITY: dict[str, Any] = {
    "model": "m",
    "sampling": {"seed": 0, "stop": ("a",)},
    "prompts": "p",
}
INFO = {"model": "tiny", "settings": {"top_p": 1.0}}
SAMPLES = 2  # of each row
BAD = (3, 1)  # the rows that fail, in the order they do


def row_id(number: int) -> str | int:
    return f"t/{number}" if number % 2 else number


def sample(number: int, index: int, text: str | None = None, **request: Any) -> SampleOutput:
    params = SamplingParams(n=SAMPLES, temperature=1.0)
    return SampleOutput(
        Request(row_id(number), number, (1, 2, 3), params, (0, 1), **request),
        index,
        text if text is not None else f"text {number} {index}\n",
        (4, 5),
        "stop",
        None,
        3,
    )


def failure(number: int) -> RowFailure:
    return RowFailure(row_id(number), number, number + 1, "bad", "mend")


def open_writer(path: Path | None, **settings: Any) -> OutputWriter:
    return OutputWriter.open(path, **{"identity": IDENTITY, "info": INFO, **settings})


def run(path: Path, order: int = 0, rows: int = 6, **settings: Any) -> None:
    """Write what is missing of a run, its samples in an order that depends on `order`."""
    with open_writer(path, **settings) as writer:
        good = [n for n in range(rows) if n not in BAD]
        wanted = [(n, i) for n in good for i in range(SAMPLES)]
        wanted = [(n, i) for n, i in wanted if (row_id(n), i) not in writer.done]
        random.Random(order).shuffle(wanted)
        for number in BAD:
            writer.fail(failure(number))
        for number, index in wanted:
            writer.write(sample(number, index))
        writer.finish(((row_id(n), n) for n in range(rows)), {"seconds": 1.0})


def files(path: Path) -> tuple[bytes, bytes]:
    """The bytes that must not depend on what happened on the way."""
    return path.read_bytes(), errors_path(path).read_bytes()


def in_child(body: Callable[[], None]) -> int:
    """Run `body` in a fork; returns how it ended: its exit code, or minus the signal's number."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


STEPS = ("open", "close", "write", "ftruncate", "fsync", "replace", "unlink")


def kill_at(step: int) -> None:
    """Kill this process at its step-th call that touches a file; a write is done by half."""
    left = step

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def dying(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                if name == "write":
                    call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return dying

    for name in STEPS:
        setattr(os, name, counted(name))

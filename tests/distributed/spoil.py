"""What goes wrong on one rank of a test: each function is called in that rank before it starts."""

from __future__ import annotations

import os
import resource
import signal
import time


def full_disk() -> None:
    """No file grows beyond a few records."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))


def broken_model() -> None:
    """A fault of santagen itself, while the model loads."""
    import santagen.llm

    class Broken:
        def __init__(self, *arguments: object, **settings: object) -> None:
            raise ZeroDivisionError("the model fell over")

    santagen.llm.LLM = Broken  # type: ignore[assignment,misc]


def killed_while_loading() -> None:
    import santagen.llm

    class Killed:
        def __init__(self, *arguments: object, **settings: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    santagen.llm.LLM = Killed  # type: ignore[assignment,misc]


def signalled_in_a_step(number: signal.Signals, step: int) -> None:
    from santagen.engine.model_runner import ModelRunner

    launch = ModelRunner.launch
    left = step

    def counted(self: ModelRunner, step: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
        return launch(self, step)  # type: ignore[arg-type]

    ModelRunner.launch = counted  # type: ignore[assignment,method-assign]


def killed_in_a_step() -> None:
    """Like running out of memory: gone in the middle of a decode step."""
    signalled_in_a_step(signal.SIGKILL, 8)


def failing_launch(error: Exception, number: int) -> None:
    """One launch ends in this error."""
    from santagen.engine.model_runner import ModelRunner

    launch, launches = ModelRunner.launch, 0

    def counted(self: ModelRunner, step: object) -> object:
        nonlocal launches
        launches += 1
        if launches == number:
            raise error
        return launch(self, step)  # type: ignore[arg-type]

    ModelRunner.launch = counted  # type: ignore[assignment,method-assign]


def little_memory() -> None:
    import torch

    failing_launch(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 5)


def lost_device() -> None:
    import torch

    failing_launch(torch.AcceleratorError("CUDA error: device-side assert triggered\nadvice"), 8)


def never_connects() -> None:
    from santagen.parallel.cluster import Cluster

    def hang(self: Cluster, *arguments: object) -> None:
        time.sleep(600)

    Cluster._form_group = hang  # type: ignore[assignment,method-assign]


def quick_self_test() -> None:
    from santagen.parallel import cluster

    cluster.TEST_SECONDS = 2.0


def little_patience() -> None:
    from santagen.parallel import cluster, watch

    watch.GRACE_SECONDS = 2.0
    cluster.JOIN_SECONDS = 3.0


def short_silence() -> None:
    from santagen.parallel.cluster import Cluster

    meet = Cluster.meet

    def impatient(self: Cluster) -> None:
        self.watch.silent = 2.0
        meet(self)

    Cluster.meet = impatient  # type: ignore[method-assign]


def short_silence_and_grace() -> None:
    from santagen.parallel import watch

    watch.GRACE_SECONDS = 1.0
    short_silence()


def stopped_in_a_step() -> None:
    """As `killed_in_a_step`, but still there: its peers wait for it."""
    signalled_in_a_step(signal.SIGSTOP, 60)


def deaf_in_a_step() -> None:
    """As on a GPU whose kernel waits for a rank that is gone: no signal gets through."""
    import ctypes

    from santagen.engine.model_runner import ModelRunner
    from santagen.parallel import watch

    watch.GRACE_SECONDS = 1.0
    launch, left = ModelRunner.launch, 60

    def counted(self: ModelRunner, step: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # of this thread only
            ctypes.CDLL(None).sleep(600)
        return launch(self, step)  # type: ignore[arg-type]

    ModelRunner.launch = counted  # type: ignore[assignment,method-assign]

"""`santagen generate -tp 2` outside torchrun: starts itself again, once per process, as torchrun
would with --standalone.

Uses torchrun's own library, so that the exit code of the process that failed first is this one's.
It prints only what no process could say itself. What the processes do is in cli.ranks.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from santagen.cli.describe import command_line
from santagen.cli.interrupt import INTERRUPTED, ending_signals, import_whole
from santagen.cli.options import GenerateOptions
from santagen.cli.ranks import STOPPED, say_not_begun
from santagen.cli.settings import Resolved
from santagen.cli.told import ERROR, Note, taking_note
from santagen.errors import SantagenError
from santagen.parallel.world import check_gpus

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

START_SECONDS = 600


def relaunch(settings: Resolved[GenerateOptions], tensor_parallel: int, data_parallel: int) -> int:
    """Run the command in tensor_parallel * data_parallel processes; returns its exit code."""
    try:
        return _launch(settings, tensor_parallel, data_parallel)
    except KeyboardInterrupt:  # no process was started: see `pass_on`
        say_not_begun(settings.options)
        return INTERRUPTED


def _launch(settings: Resolved[GenerateOptions], tensor_parallel: int, data_parallel: int) -> int:
    import_whole("numpy", "torch")
    import torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    count = tensor_parallel * data_parallel
    if settings.options.device != "cpu" and torch.cuda.is_available():
        check_gpus(count, torch.cuda.device_count())
    words, secrets = command_line(settings, "generate")
    os.environ.update(secrets)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    logging.disable(logging.CRITICAL)  # the launcher's own account of a failure

    ending = ending_signals()

    def pass_on(number: int, frame: FrameType | None) -> NoReturn:
        for number in ending:
            signal.signal(number, signal.SIG_IGN)  # a second would leave the ranks alone
        raise SignalException("interrupted", signal.SIGTERM)

    before = [signal.signal(number, pass_on) for number in ending]
    with taking_note() as note:
        try:
            elastic_launch(_config(count), sys.executable)("-m", "santagen", *words)
        except SignalException:
            if not note:
                say_not_begun(settings.options)
            return INTERRUPTED
        except ChildFailedError as error:
            return _failed(error, note)
        finally:
            _end_left_behind()
            logging.disable(logging.NOTSET)
            for number, handler in zip(ending, before, strict=True):
                signal.signal(number, handler)
    return 0


def _end_left_behind() -> None:
    """End the processes that a signal kept torch from noting: it raises in the midst of a start."""
    own = os.getpid()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == own:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue  # it ended meanwhile


def _failed(error: ChildFailedError, note: Note) -> int:
    """The exit code; raises SantagenError for an end that no rank could tell of."""
    rank, failure = error.get_first_failure()
    if failure.exitcode >= 0 or note.holds(ERROR):
        return STOPPED if failure.exitcode < 0 else int(failure.exitcode)
    name = signal.Signals(-failure.exitcode).name
    raise SantagenError(
        f"Rank {rank} was ended by {name}.",
        "SIGKILL mostly means that memory ran out." if name == "SIGKILL" else "",
    ) from None


def _config(count: int) -> Any:
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port
        rdzv_configs={"timeout": START_SECONDS},
        local_addr="localhost",
        max_restarts=0,
        # Not SIGINT, which a rank that still imports would show a traceback for: see `pass_on`.
        signals_to_handle=",".join(["SIGQUIT", *(s.name for s in ending_signals()[1:])]),
    )

"""`santagen generate` as one process of several: what rank 0, the other leaders and the rest do.

    rank 0     validates the input, opens OUT, plans the rows, generates, waits, merges, reports
    leaders    of the other groups: draw rows from the same queue, write OUT.part-k
    others     hold a shard of their leader's model and take its requests

What the leaders do is in cli.leaders. A fault on one rank ends all of them; the first to notice
says it, once.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from santagen.cli.console import Console, report_error
from santagen.cli.describe import resume_command
from santagen.cli.ending import end_now
from santagen.cli.generate_inputs import Inputs, read_inputs, sampling_params
from santagen.cli.interrupt import ENGINE, INTERRUPTED, Interrupts, import_whole
from santagen.cli.leaders import OtherLeader, RankZero, draw_evenly, load_shard
from santagen.cli.model import find_model
from santagen.cli.options import GenerateOptions
from santagen.cli.output import output_path
from santagen.cli.settings import Resolved
from santagen.cli.told import ENDING, ERROR, has_launcher, tell
from santagen.config import ModelConfig
from santagen.errors import SantagenError
from santagen.io.output_place import is_stream
from santagen.parallel.world import World, check_gpus, check_model_divides, sizes
from santagen.request import Request, RowFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

    from santagen.parallel.cluster import Cluster

STOPPED = 2  # the exit code of a rank that ends because another has
MANNERS_SECONDS = 1.0  # what other ranks leave rank 0 to tell of an interruption
PATIENCE_SECONDS = 3.0  # for a launcher to notice that a rank is gone


def run_rank(settings: Resolved[GenerateOptions], world: World, console: Console) -> int:
    """This process's part of the run; returns its exit code."""
    with Interrupts() as interrupts:
        try:
            import_whole(*ENGINE)
            from santagen.parallel.cluster import Cluster

            cluster = Cluster.join(world, os.environ)
        except KeyboardInterrupt:
            if not has_launcher():  # which says it otherwise
                say_not_begun(settings.options)
            return INTERRUPTED
        rank = Rank(settings, cluster, console, interrupts)
        cluster.watch.farewell = rank.say_farewell
        try:
            code = rank.run()
        except KeyboardInterrupt:
            rank.say_interrupted()
            code = INTERRUPTED
        except Exception as error:
            give_up(cluster, rank.report(error))  # here: see cli.ending
        if code in (0, 1):
            interrupts.ignore()  # all is done: the launcher may end the rest when the first leaves
            tell(ENDING)
            cluster.leave()
            return code
        give_up(cluster, STOPPED if code == INTERRUPTED and cluster.watch.lost else code)


def give_up(cluster: Cluster, code: int) -> NoReturn:
    """End this process, and let the others know."""
    cluster.fail()
    end_now(code)


class Rank:
    """One process: joins the others, takes its part and speaks for the run where it must."""

    def __init__(
        self,
        settings: Resolved[GenerateOptions],
        cluster: Cluster,
        console: Console,
        interrupts: Interrupts,
    ) -> None:
        self.settings, self.options, self.cluster = settings, settings.options, cluster
        self.given = settings  # without what the launcher decides
        self.console, self.interrupts = console, interrupts
        self.begun = False  # whether OUT is known to be this run's
        self.done: Callable[[], str] = lambda: ""  # how much of the run is safe, where it is known
        self._voice = threading.Lock()  # of the main thread and the watch's
        self._spoken = False

    def run(self) -> int:
        options, cluster = self.options, self.cluster
        cluster.meet()
        world = cluster.world
        tensor_parallel, data_parallel = sizes(
            options.tensor_parallel_size, options.data_parallel_size, world.size
        )
        world = cluster.world = dataclasses.replace(world, tensor_parallel=tensor_parallel)
        self._name_sizes(world)
        if data_parallel > 1 and output_path(options.output) is None:
            raise SantagenError(
                f"-dp {data_parallel} needs an output file: every group writes a part of it.",
                "Name it with -o OUT.jsonl.",
            )
        device = self._device(world)
        if world.rank == 0:
            code = self._lead_the_run(device)
            if code != INTERRUPTED:
                cluster.publish("exit", code)
            return code
        rows = cluster.receive("rows")
        if rows:
            self._take_part(rows, device)
        # All end alike, and not before the merge: launchers end the others after a code that isn't
        # 0, and wait for those of other nodes after one that is.
        return int(cluster.receive("exit"))

    def _take_part(self, rows: int, device: torch.device) -> None:
        options, cluster = self.options, self.cluster
        source = find_model(options, Console(quiet=True))
        cluster.connect(device)
        if cluster.world.leads:
            prompts, plan = cluster.receive("plan")
            inputs = Inputs(sampling_params(options), prompts, source)
            OtherLeader(self, inputs, plan, rows).run()
        else:
            self._follow(source, rows)

    def _name_sizes(self, world: World) -> None:
        """Let the manifest and the command that resumes say what is in force."""
        options = dataclasses.replace(
            self.options,
            tensor_parallel_size=world.tensor_parallel,
            data_parallel_size=world.data_parallel,
        )
        in_force = dict.fromkeys(("tensor_parallel_size", "data_parallel_size"), "flag")
        origins = self.settings.origins | in_force
        self.settings, self.options = Resolved(options, origins), options

    def _device(self, world: World) -> torch.device:
        import torch

        if self.options.device == "cpu" or not torch.cuda.is_available():
            return torch.device("cpu")
        check_gpus(world.local_size, torch.cuda.device_count(), "a node")
        torch.cuda.set_device(world.local_rank)
        return torch.device("cuda", world.local_rank)

    def _lead_the_run(self, device: torch.device) -> int:
        inputs = read_inputs(self.options, self.console)
        config = ModelConfig.from_directory(inputs.source.path)
        check_model_divides(config, self.cluster.world.tensor_parallel)
        return RankZero(self, inputs, device).run()

    def _follow(self, source: Any, rows: int) -> None:
        cluster = self.cluster
        llm = load_shard(self, source)
        n = sampling_params(self.options).n
        batch = draw_evenly(llm, cluster.world.data_parallel, rows, n)
        cluster.barrier("loaded", cluster.world.size)
        requests: Iterator[Request | RowFailure] = cluster.tensor_parallel.same_items((), batch)
        for _ in llm.engine.run(requests):
            pass  # its leader writes the same sample

    # -- speaking ------------------------------------------------------------------------------

    def report(self, error: Exception) -> int:
        """Say what ended the run, unless another rank has; returns the exit code."""
        told = self._told(error)
        if told is not error and has_launcher():
            try:
                time.sleep(PATIENCE_SECONDS)
            except KeyboardInterrupt:  # the launcher knows which rank it was, and says so
                self.say_interrupted()
                return STOPPED
        self.interrupts.ignore()  # the launcher's, which may come in the middle of a word
        self._speak(lambda: self._say_error(told))
        return told.exit_code if isinstance(told, SantagenError) else 2

    def _told(self, error: Exception) -> Exception:
        if isinstance(error, SantagenError) or not is_lost_connection(error):
            return error
        who = self.cluster.meeting_point
        if not is_lost_store(error):
            who = "A rank of this tensor-parallel group"
        return SantagenError(
            f"{who} went away: its connection was lost.",
            "Its own message, or the system's log, may say why (memory, a kill, the network).",
        )

    def say_interrupted(self) -> None:
        """After a signal: the user's, the launcher's, or this process's own watch's."""
        self.interrupts.ignore()  # where the launcher and the watch both end this process
        self.say_farewell()

    def say_farewell(self) -> None:
        """As `say_interrupted`, also in the watch's thread: the main one waits for what is gone."""
        if self.cluster.world.rank:
            time.sleep(MANNERS_SECONDS)
        self._speak(self._say_stopped)

    def _speak(self, say: Callable[[], None]) -> None:
        """`say` it where neither another rank nor another thread of this one has spoken."""
        with self._voice:
            if not self._spoken and self.cluster.may_speak():
                say()
            self._spoken = True

    def _say_error(self, error: Exception) -> None:
        report_error(error, any_rank=True)
        tell(ERROR)
        output = self._begun_output()
        if output is None:
            return
        if " safe in " not in str(error) + getattr(error, "hint", ""):
            Console(any_rank=True).warn(f"{self._safe(output)}.")
        self._show_resume()

    def _say_stopped(self) -> None:
        lost = self.cluster.watch.lost or self._gone()
        if lost is not None:
            report_error(SantagenError(f"The run was stopped: {lost}."), any_rank=True)
            tell(ERROR)
        tell(ENDING)
        output = self._begun_output()
        if output is not None:
            Console(any_rank=True).warn(f"interrupted: {self._safe(output)}.")
            self._show_resume()
        elif self.done() and output_file(self.options) is None:
            Console(any_rank=True).warn(f"interrupted after {self.done()}.")
        else:
            say_not_begun(self.options)

    def _gone(self) -> str | None:
        """The rank because of which the launcher ends this one, if any is."""
        by = self.interrupts.last or self.cluster.watch.signal
        if by != signal.SIGTERM or has_launcher():
            return None
        self.cluster.watch.lost = self.cluster.gone()
        return self.cluster.watch.lost

    def _begun_output(self) -> Path | None:
        """The output, where it holds what this run wrote, or what it was to go on with."""
        output = output_file(self.options)
        if output is None:
            return None
        return output if self.begun or self.cluster.has("begun") else None

    def _safe(self, output: Path) -> str:
        parts = " and the parts beside it" if self.cluster.world.data_parallel > 1 else ""
        done = self.done()
        if not done:
            return f"what was finished is safe in {output}{parts}"
        verb = "is" if done.endswith(" 1 sample") else "are"
        return f"{done} of this run {verb} safe in {output}{parts}"

    def _show_resume(self) -> None:
        """The command that goes on: as the run was started, where santagen can't do that alone."""
        world = self.cluster.world
        start = "Go on with: "
        settings = self.given
        if "TORCHELASTIC_RUN_ID" in os.environ and not has_launcher():
            nodes = f" on all {world.size // world.local_size} nodes"
            where = nodes if world.size > world.local_size else ""
            start = f"Go on{where} with the same options of torchrun: torchrun ... -m "
        elif world.size > world.local_size:
            start = "Go on as this run was started, on every node, with: "
        else:
            settings = self.settings
        Console(any_rank=True).say(f"{start}{resume_command(settings, 'generate')}")


def output_file(options: GenerateOptions) -> Path | None:
    """The output, where it is one that a run can go on with."""
    output = output_path(options.output)
    return None if output is None or is_stream(output) else output


def say_not_begun(options: GenerateOptions) -> None:
    """That the run was interrupted before anything was written."""
    Console(any_rank=True).interrupted_before("sample", output_file(options))


def is_lost_store(error: Exception) -> bool:
    """Whether the failed connection was to the store that all processes meet at."""
    from torch import distributed as dist

    return isinstance(error, dist.DistNetworkError | dist.DistStoreError)


def is_lost_connection(error: Exception) -> bool:
    """Whether a collective, or talk to the store, failed because another process is gone."""
    from torch import distributed as dist

    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )

"""The process that programs are forked from: confined first, then asked for one fork at a time.

    run (with a socket)  fork; the child takes on its limits and becomes the program
    count                how many processes that child has started so far
    cpu                  how much CPU time it has used so far
    end                  kill all it left, reap it, clear the scratch folder, say what it used

In a pid namespace this is process 1: it can't be killed from inside, it inherits every orphan, and
kill(-1) reaches all of them and nobody else. It never sees a program or a test: the fork gets them
over its own channel, so that no program finds another, or a solution, in the memory it inherits.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import random
import resource
import signal
import socket
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

from santagen.evaluation.sandbox import frames, linux, seccomp
from santagen.evaluation.sandbox.leftovers import children, empty_folder
from santagen.evaluation.sandbox.program import leave, serve_program

# What programs import most: loaded once here instead of in every fork.
COMMON_MODULES = [
    "bisect",
    "collections",
    "copy",
    "cmath",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "time",
    "typing",
    "numbers",
    "dataclasses",
]
FAILED = 99  # the exit code of a child that could not even start its program
CONFINED = {"confined": True}  # said by such a child before it is given a program
PLAIN_PROCESSES = 4096
CHANNEL, RULES = 3, 4  # where the child keeps its two file descriptors


@dataclass(frozen=True)
class Confinement:
    """What a tier brings with it. The pieces are independent, so that a test can look at each."""

    tier: str
    scratch: str
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    landlock: bool
    scratch_megabytes: int = 64

    @property
    def own_pids(self) -> bool:
        """Whether it has namespaces of its own, that of processes among them."""
        return self.tier != "plain"


class Zygote:
    """`prepare` confines it, `serve` forks one child at a time, as `control` asks."""

    def __init__(self, control: socket.socket, confinement: Confinement) -> None:
        self.control, self.confinement = control, confinement
        self.ruleset = -1
        self.child = 0
        self._cpu_before = 0.0  # seconds that the children of earlier jobs have used

    def prepare(self) -> dict[str, bool]:
        """Confine this process as far as its children must share it; returns what is in force."""
        conf = self.confinement
        if conf.tier == "namespaces":
            linux.bound_pids()
            linux.make_mounts_private()
            for path in conf.hidden:
                linux.mount_tmpfs(path, 1, 16)
            linux.make_mounts_read_only()
        self._fresh_scratch()
        if not conf.own_pids:
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        # What every child needs is set here once: each page it writes is a page to copy.
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for name in COMMON_MODULES:
            importlib.import_module(name)
        warnings.simplefilter("ignore")
        random.seed(0)  # the same answers in every run
        filtered = all(seccomp.build_filter(1, commands) is not None for commands in (True, False))
        gc.freeze()
        return {
            "namespaces": conf.own_pids,
            "landlock": conf.landlock,
            "seccomp": filtered,
            "no_new_privs": True,
        }

    def serve(self) -> None:
        while True:
            message, descriptor = frames.receive_with_descriptor(self.control)
            if message["op"] == "run":
                self._fork(message, descriptor)
            elif message["op"] == "count":
                frames.send(self.control, {"started": self._started_since()})
            elif message["op"] == "cpu":
                frames.send(self.control, {"cpu": linux.cpu_seconds(self.child)})
            else:
                frames.send(self.control, self._end(message["grace"]))

    def _fork(self, job: dict[str, Any], descriptor: int) -> None:
        limits = job["limits"]
        if self.confinement.tier == "plain":  # counts all that the user runs, programs or not
            limits["nproc"] = max(limits["nproc"], PLAIN_PROCESSES)
        job["limits"] = linux.plan_limits(limits)
        self.child = linux.fork_plainly()
        if self.child == 0:
            self._become(job, descriptor)
        os.close(descriptor)

    def _started_since(self) -> int:
        """How many processes and threads began after the child, by the number the next one gets."""
        try:
            probe = linux.fork_plainly()
        except OSError:
            return sys.maxsize  # there is no room for another
        if probe == 0:
            os._exit(0)
        os.waitpid(probe, 0)
        return probe - self.child

    def _become(self, job: dict[str, Any], descriptor: int) -> NoReturn:
        """In the child: give up everything, then be the program."""
        try:
            linux.run_ordinarily()
            os.setsid()
            self.control.detach()
            channel = self._keep_descriptors(descriptor)
            for number, limit in job["limits"]:
                resource.setrlimit(number, limit)
            linux.drop_capabilities()
            if self.ruleset >= 0:
                linux.landlock_restrict(RULES)
                os.close(RULES)
            rules = seccomp.build_filter(os.getpid(), job["mode"] == "command")
            if rules is not None:
                seccomp.install(rules)
            frames.send(channel, CONFINED)
            serve_program(channel, frames.receive(channel))
        except frames.Closed:
            leave(0)  # the checker has heard enough
        except BaseException:
            leave(FAILED)
        leave(0)

    def _keep_descriptors(self, descriptor: int) -> socket.socket:
        """Close all but /dev/null (0, 1, 2), the channel (3) and, for a moment, the rules."""
        rules = fcntl.fcntl(self.ruleset, fcntl.F_DUPFD, 64) if self.ruleset >= 0 else -1
        os.dup2(descriptor, CHANNEL, inheritable=False)
        if rules >= 0:
            os.dup2(rules, RULES, inheritable=False)
        os.closerange(RULES + 1 if rules >= 0 else RULES, 1024)
        return socket.socket(fileno=CHANNEL)

    def _end(self, grace: float) -> dict[str, Any]:
        """Stop the child and all it started; a child that is ending may take `grace`."""
        status = self._status_within(grace)
        by_itself = status is not None
        strays = self._kill_all() - (0 if by_itself else 1)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime
        before, self._cpu_before = self._cpu_before, cpu
        self.child = 0
        self._clear_scratch()
        answer: dict[str, Any] = {"by_itself": by_itself, "cpu": cpu - before, "strays": strays}
        if status is not None:
            answer["code"] = os.waitstatus_to_exitcode(status)
        return answer

    def _status_within(self, grace: float) -> int | None:
        until = time.monotonic() + grace
        while True:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                return status
            if time.monotonic() >= until:
                return None
            time.sleep(0.001)

    def _kill_all(self) -> int:
        """SIGKILL to everything below this process until nothing is left; returns how many there
        were.
        """
        reaped = 0
        while True:
            if self.confinement.own_pids:
                with contextlib.suppress(ProcessLookupError):  # nobody is left
                    os.kill(-1, signal.SIGKILL)
            else:
                for pid in children():
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, 0)[0]:
                    reaped += 1
            except ChildProcessError:
                return reaped

    def _clear_scratch(self) -> None:
        if os.listdir(self.confinement.scratch):
            if self.confinement.tier == "namespaces":
                linux.detach_mount(self.confinement.scratch)
            self._fresh_scratch()

    def _fresh_scratch(self) -> None:
        """An empty scratch folder, whatever was in the last one, and rules that know it."""
        conf = self.confinement
        if conf.tier == "namespaces":
            linux.mount_tmpfs(conf.scratch, conf.scratch_megabytes)
        else:
            empty_folder(conf.scratch)
        os.chdir(conf.scratch)  # where programs start
        if conf.landlock:
            if self.ruleset >= 0:
                os.close(self.ruleset)
            writable = (conf.scratch, "/dev/null")
            self.ruleset = linux.landlock_ruleset(conf.readable, writable, conf.hidden)


def main(arguments: dict[str, Any]) -> NoReturn:
    """The zygote's process: enters the namespaces of its tier, reports, and serves until its owner
    is gone.
    """
    control = socket.socket(fileno=arguments.pop("control"))
    parent = arguments.pop("parent")
    lists: dict[str, Any] = {name: tuple(arguments.pop(name)) for name in ("readable", "hidden")}
    confinement = Confinement(**lists, **arguments)
    try:
        if confinement.tier == "namespaces":
            linux.enter_namespaces()
            _fork_init(parent)
        elif confinement.tier == "plain":
            linux.die_with_parent(parent)
        zygote = Zygote(control, confinement)
        features = zygote.prepare()
    except OSError as error:
        frames.send(control, {"refused": str(error)})
        sys.exit(0)
    os.dup2(0, 2)  # what programs write to stderr goes nowhere; a full pipe would stop them
    frames.send(control, {"ready": features})
    try:
        zygote.serve()
    except frames.Closed:
        sys.exit(0)
    raise AssertionError("serve ends only when its owner closes the channel")


def _fork_init(parent: int) -> None:
    """Go on as process 1 of the new pid namespace; the outer process waits for it."""
    outer = os.getpid()
    child = os.fork()
    if child:
        linux.die_with_parent(parent)
        os.waitpid(child, 0)
        os._exit(0)
    linux.die_with_parent(outer)

"""One worker: a trusted process that owns a zygote and a checker, and holds the clock.

It reads jobs from standard input and writes one answer each to standard output (see `frames`). It
ends when its input ends, and takes the zygote and everything in it along. The checker is a fork of
its own, since a test can hang on a program's answers; it serves one test after another and is
replaced when it had to be killed.

The clock: a program has `timeout` seconds. Where the machine is busy it gets more wall time, until
it has used `timeout` seconds of CPU time or four times the wall time. A time-out of a program that
used its CPU time is `final`; any other may be the machine's fault, and the caller runs it once
more, alone.
"""

from __future__ import annotations

import gc
import importlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from santagen.evaluation.sandbox import checker, frames, linux, tiers, zygote
from santagen.evaluation.sandbox.zygote import COMMON_MODULES

START_SECONDS = 60.0
ANSWER_SECONDS = 20.0
GRACE_SECONDS = 0.5  # for a program whose channel closed to become a zombie
BUSY_SHARE = 0.25  # a program with less CPU than this share of the wall time is asleep, not starved
STRETCH = 4
COUNT_SECONDS = 0.1
MOST_STARTED = 1000  # processes and threads of one test, ended ones included
TAMPERED = "the program ended before its test did"
HANDED_OVER = {
    "pipe": ("mode", "program", "nonce"),
    "in_process": ("mode", "program", "nonce", "test"),
    "command": ("mode", "program", "file", "commands"),
}


class Broken(Exception):
    """The zygote is of no more use."""


class Worker:
    """`start` once, `run` one job after another, `stop` always. `settings` are workers' to send."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.scratch = settings["scratch"]
        self.zygote: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.pid = os.getpid()
        self.checker: socket.socket | None = None
        self.checker_pid = 0

    def start(self) -> dict[str, Any]:
        """Start the zygote; {"ready": features} or {"refused": why}."""
        ours, theirs = socket.socketpair()
        command = tiers.zygote_command(self.settings, self.scratch, theirs.fileno())
        self.zygote = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env=tiers.environment(self.scratch),
            start_new_session=True,
            cwd="/",
        )
        theirs.close()
        self.control = ours
        ours.settimeout(START_SECONDS)
        try:
            return frames.receive(ours)
        except (frames.Closed, frames.Garbage):
            self.zygote.kill()
            said = self.zygote.communicate()[1].decode("utf-8", "replace").strip()
            return {"refused": said.splitlines()[-1] if said else "it ended at once"}

    def stop(self) -> None:
        self._end_checker()
        if self.control is not None:
            self.control.close()
        if self.zygote is not None:
            try:
                self.zygote.wait(5)
            except subprocess.TimeoutExpired:
                self.zygote.kill()
                self.zygote.wait()
            if self.zygote.stderr is not None:
                self.zygote.stderr.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """One test, and where it ran beside the program, its decoys too."""
        answer = self._run(job)
        for decoy in job["decoys"] if job["mode"] == "in_process" else ():
            if answer["class"] != "passed":
                break
            again = self._run({**job, "test": decoy})
            if again["class"] == "passed":
                answer |= {"class": "forged", "message": "a test that nothing passes was passed"}
            elif again["class"] == "infrastructure":
                return again
        return answer

    def _run(self, job: dict[str, Any]) -> dict[str, Any]:
        """One test from the fork to the last process killed."""
        started = time.monotonic()
        ours, theirs = socket.socketpair()
        job["nonce"] = secrets.token_hex(16)
        self._tell({"op": "run", "mode": job["mode"], "limits": job["limits"]}, [theirs.fileno()])
        theirs.close()
        try:
            self._hand_over(ours, job)
            verdict = self._wait(self._give_checker(ours, job), job, started)
        finally:
            ours.close()
        if verdict["class"] in ("timeout", "memory", "infrastructure"):
            self._end_checker()
        usage = self._ask(
            {"op": "end", "grace": GRACE_SECONDS if verdict["class"] == "closed" else 0}
        )
        if verdict["class"] == "closed":
            verdict |= _by_status(usage, job["timeout"])
        return {
            **verdict,
            "cpu": usage["cpu"],
            "wall": time.monotonic() - started,
            "strays": usage["strays"],
        }

    def _hand_over(self, channel: socket.socket, job: dict[str, Any]) -> None:
        """Give the program to its process, once that is confined; so far it is our code."""
        names = HANDED_OVER[job["mode"]]
        channel.settimeout(ANSWER_SECONDS)
        try:
            if frames.receive(channel) != zygote.CONFINED:
                raise Broken("the program's process said something else than that it is confined")
            frames.send(channel, {name: job[name] for name in names})
        except (frames.Closed, frames.Garbage) as error:
            raise Broken(f"the program's process could not be confined: {error}") from None
        channel.settimeout(None)

    def _give_checker(self, channel: socket.socket, job: dict[str, Any]) -> socket.socket:
        """Hand the program's channel to the checker; its verdict comes over the socket returned."""
        if self.checker is None:
            ours, theirs = socket.socketpair()
            self.checker_pid = os.fork()
            if self.checker_pid == 0:
                try:
                    assert self.control is not None
                    linux.run_ordinarily()  # the test's own code may be busy
                    linux.die_with_parent(self.pid)
                    for held in (channel, self.control, ours):
                        held.close()
                    checker.serve(theirs)
                finally:
                    os._exit(1)
            theirs.close()
            self.checker = ours
        task = {name: job[name] for name in ("mode", "helpers", "entry", "test", "nonce")}
        frames.send(self.checker, task, [channel.fileno()])
        return self.checker

    def _end_checker(self) -> None:
        if self.checker is not None:
            self.checker.close()
            self.checker = None
            os.kill(self.checker_pid, signal.SIGKILL)
            os.waitpid(self.checker_pid, 0)

    def _wait(self, verdicts: socket.socket, job: dict[str, Any], started: float) -> dict[str, Any]:
        """The checker's verdict, or a time-out."""
        poll = select.poll()
        poll.register(verdicts, select.POLLIN)
        timeout = job["timeout"]
        until = started + timeout
        # Root is exempt from the limit on processes, and commands may start some.
        counted = job["mode"] == "command" and self.settings["tier"] != "plain"
        while True:
            left = max(0.0, until - time.monotonic())
            if poll.poll((min(left, COUNT_SECONDS) if counted else left) * 1000 + 1):
                return self._verdict(verdicts, job)
            if counted and int(self._ask({"op": "count"})["started"]) > MOST_STARTED:
                self._end_checker()  # its verdict must not be taken for the next program's
                return {"class": "exception", "exception": "too many processes", "message": ""}
            wall = time.monotonic() - started
            if wall < until - started:
                continue
            cpu = float(self._ask({"op": "cpu"})["cpu"])
            used_up = cpu >= 0.98 * timeout
            if used_up or cpu < BUSY_SHARE * wall or wall >= STRETCH * timeout:
                return {"class": "timeout", "exception": "", "message": "", "final": used_up}
            until = started + min(STRETCH * timeout, wall + max(0.05, timeout - cpu))

    def _verdict(self, verdicts: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
        """What the checker says of this job."""
        try:
            verdict = dict(frames.receive(verdicts))
        except frames.Closed:
            return {"class": "infrastructure", "message": "the checker ended without a verdict"}
        if verdict.pop("nonce") != job["nonce"]:
            raise Broken("the checker's verdict is on another program")
        return verdict

    def _tell(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        assert self.control is not None
        self.control.settimeout(ANSWER_SECONDS)
        try:
            frames.send(self.control, message, descriptors or [])
        except frames.Closed as error:
            raise Broken(f"the zygote is gone: {error}") from None

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self._tell(message)
        assert self.control is not None
        try:
            return dict(frames.receive(self.control))
        except (frames.Closed, frames.Garbage) as error:
            raise Broken(f"the zygote is gone: {error}") from None


def _by_status(usage: dict[str, Any], timeout: float) -> dict[str, Any]:
    """The class of a program that went away before its test was over, by how it ended."""
    if not usage["by_itself"]:
        return {"class": "forged", "message": "the program closed its channel"}
    code = usage["code"]
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and usage["cpu"] >= 0.9 * timeout):
        return {"class": "timeout", "final": True}
    if code == -signal.SIGKILL:
        return {"class": "memory", "exception": "SIGKILL", "message": "killed by the kernel"}
    if code < 0:
        return {"class": "exception", "exception": signal.Signals(-code).name, "message": ""}
    if code == 0:
        return {"class": "forged", "message": TAMPERED}
    return {"class": "exception", "exception": f"exit code {code}", "message": TAMPERED}


def main() -> None:
    """The worker's process: settings first, then jobs, from standard input."""
    jobs, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # through the clean-up below
    for name in COMMON_MODULES:
        importlib.import_module(name)
    worker = Worker(frames.read_pipe(jobs))
    linux.run_first()  # the zygote too
    try:
        said = worker.start()
        frames.write_pipe(answers, said)
        gc.freeze()
        while "ready" in said:
            frames.write_pipe(answers, worker.run(frames.read_pipe(jobs)))
    except (frames.Closed, BrokenPipeError):
        pass  # the scorer is done, or gone
    except Broken as error:
        frames.write_pipe(answers, {"class": "broken", "message": str(error)})
    finally:
        worker.stop()

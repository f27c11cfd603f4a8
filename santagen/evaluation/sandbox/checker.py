"""The trusted side of one test: runs the task's own test code and calls the program through a pipe.

It never imports the program. What it executes comes from the task's data alone (its tests, and the
helper functions that they call); the program's answers are parsed as plain literals. The verdict is
made here.

    {"class": "passed" | "syntax" | "assertion" | "exception" | "memory" | "forged" | "unsupported"
              | "closed" (the program went away: its exit status says more) | "infrastructure",
     "exception": name of the exception, "message": its text}
"""

from __future__ import annotations

import random
import resource
import socket
from functools import lru_cache
from types import CodeType
from typing import Any

from santagen.evaluation.sandbox import frames, linux
from santagen.evaluation.sandbox.literals import allow_long_ints
from santagen.evaluation.sandbox.session import SHOWN, Forged, Named, Session, Unsupported

MEMORY = 3 << 30  # what an answer may make this process hold
SHOWN_NAME = 100


@lru_cache(maxsize=512)
def compile_trusted(source: str, name: str) -> CodeType:
    """Code of the task's own, compiled once per worker."""
    return compile(source, name, "exec", dont_inherit=True)


def serve(jobs: socket.socket) -> None:
    """Check one program after another: a job with a channel comes, a verdict goes, until `jobs`
    closes.
    """
    allow_long_ints()
    for number, limit in linux.plan_limits({"as": MEMORY}):
        resource.setrlimit(number, limit)
    while True:
        try:
            job, descriptor = frames.receive_with_descriptor(jobs)
            with socket.socket(fileno=descriptor) as channel:
                verdict = check(channel, job)
            frames.send(jobs, {**verdict, "nonce": job["nonce"]})
        except frames.Closed:
            return


def check(channel: socket.socket, job: dict[str, Any]) -> dict[str, str]:
    """The verdict on the program behind `channel`."""
    random.seed(0)  # the same test values in every run
    session = Session(channel)
    try:
        verdict = _loaded(session.receive(), job)
        return verdict or _run_test(session, job)
    except frames.Closed:
        return _verdict("closed")
    except frames.Garbage as error:
        return _verdict("forged", message=f"the program answered with {error}")
    except MemoryError:
        return _verdict("memory", "MemoryError", "the program's answer is too large")


def _loaded(said: dict[str, Any], job: dict[str, Any]) -> dict[str, str] | None:
    """The verdict where the program's first message settles it."""
    if "infrastructure" in said and job["mode"] == "command":
        return _verdict("infrastructure", message=str(said["infrastructure"]))
    if "syntax" in said:
        return _verdict("syntax", str(said.get("name")), str(said["syntax"]))
    if "error" in said:
        name = str(said["error"])
        asserted = job["mode"] == "in_process" and name == "AssertionError"
        kind = "memory" if name == "MemoryError" else "assertion" if asserted else "exception"
        return _verdict(kind, name, str(said.get("message", "")))
    if job["mode"] == "command":
        return _exit_verdict(said)
    if said.get("ready") != job["nonce"]:
        return _verdict("forged", message="the program's first message is not the loader's")
    return _verdict("passed") if job["mode"] == "in_process" else None


def _exit_verdict(said: dict[str, Any]) -> dict[str, str]:
    code = said.get("exit")
    if code == 0:
        return _verdict("passed")
    if said.get("stage") == "compile":
        return _verdict("syntax", "compile error", str(said.get("message", "")))
    return _verdict("exception", f"exit code {code}", str(said.get("message", "")))


def _run_test(session: Session, job: dict[str, Any]) -> dict[str, str]:
    names: dict[str, Any] = {"__name__": "test"}
    try:
        if job["helpers"]:
            exec(compile_trusted(job["helpers"], "<helpers>"), names)
        names.update((name, Named(session, name)) for name in job["entry"])
        exec(compile_trusted(job["test"], "<test>"), names)
    except (frames.Closed, frames.Garbage):
        raise
    except Unsupported as error:
        return _verdict("unsupported", message=str(error))
    except Forged as error:
        return _verdict("forged", message=f"the program answered with no literal: {error}")
    except BaseException as error:
        return _failed(session, error)
    return _verdict("passed")


def _failed(session: Session, error: BaseException) -> dict[str, str]:
    name = str(getattr(error, "remote_name", type(error).__name__))
    message = _text(error)
    if name == "MemoryError":
        return _verdict("memory", name, message)
    if isinstance(error, AssertionError) and error is not session.raised:
        if session.claimed_equality:
            return _verdict("forged", message="an object that claims to equal everything")
        return _verdict("assertion", name, message)
    return _verdict("exception", name, message)


def _text(error: BaseException) -> str:
    """What the error says; an assert's message may be an object of the program's."""
    try:
        return str(error)
    except (frames.Closed, frames.Garbage, MemoryError):
        raise
    except BaseException:
        return ""


def _verdict(kind: str, exception: str = "", message: str = "") -> dict[str, str]:
    """Names and texts may be of the program's making, and are shown on terminals."""
    name = "".join(c if c.isprintable() else "?" for c in exception[:SHOWN_NAME])
    return {"class": kind, "exception": name, "message": message[:SHOWN]}

"""The trusted side of one test: runs the task's own test code and calls the program through a pipe.

It never imports the program. What it executes comes from the task's data alone (its tests, and the
helper functions that they call); the program's answers are parsed as plain literals. The verdict is
made here.

    {"class": "passed" | "syntax" | "assertion" | "exception" | "memory" | "forged" | "unsupported"
              | "closed" (the program went away: its exit status says more) | "infrastructure",
     "exception": name of the exception, "message": its text}
"""

from __future__ import annotations

import builtins
import random
import resource
import socket
from functools import lru_cache
from types import CodeType
from typing import Any

from santagen.evaluation.sandbox import frames, linux
from santagen.evaluation.sandbox.literals import (
    NotLiteral,
    Opaque,
    allow_long_ints,
    decode,
    encode,
    update_in_place,
)

SHOWN = 500
LARGEST_ANSWER = 16 << 20  # bytes
MEMORY = 3 << 30  # what an answer may make this process hold


class RemoteError(Exception):
    """An exception of the program's own making, or one that doesn't derive from Exception."""


class _Forged(Exception):
    """The program sent something that no honest one could."""


class _Unsupported(Exception):
    """The test passes something that has no literal form."""


@lru_cache(maxsize=512)
def compile_trusted(source: str, name: str) -> CodeType:
    """Code of the task's own, compiled once per worker."""
    return compile(source, name, "exec", dont_inherit=True)


class Session:
    """The program on the other end of `channel`."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.raised: Exception | None = None  # the last exception that came from the program
        self.claimed_equality = False

    def receive(self) -> dict[str, Any]:
        message = frames.receive(self.channel, LARGEST_ANSWER)
        if type(message) is not dict:
            raise frames.Garbage("not an object")
        return message

    def function(self, name: str) -> Any:
        """A stand-in for the program's function `name`."""

        def candidate(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        candidate.__name__ = name
        return candidate

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(isinstance(item, Opaque) for item in (*args, *kwargs.values())):
            raise TypeError("the program's own object can't be passed back to it")
        try:
            call = {"name": name, "args": encode(args, True), "kwargs": encode(kwargs, True)}
        except NotLiteral as error:
            raise _Unsupported(str(error)) from None
        frames.send(self.channel, call)
        answer = self.receive()
        try:
            if "error" in answer:
                raise self._exception(answer)
            result = decode(answer["result"])
            if "args" in answer:
                update_in_place(args, decode(answer["args"]))
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            if error is self.raised:
                raise
            raise _Forged(str(error)) from None
        self.claimed_equality |= isinstance(result, Opaque) and result.equals_all
        return result

    def _exception(self, answer: dict[str, Any]) -> Exception:
        name, message = str(answer["error"]), str(answer.get("message", ""))[:SHOWN]
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                self.raised = kind(message)
            except TypeError:  # UnicodeDecodeError and the like want more than a text
                self.raised = RemoteError(message)
        else:
            self.raised = RemoteError(message)
        self.raised.remote_name = name  # type: ignore[attr-defined]
        return self.raised


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
            frames.send(jobs, verdict)
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
    if "infrastructure" in said:
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
        names.update((name, session.function(name)) for name in job["entry"])
        exec(compile_trusted(job["test"], "<test>"), names)
    except (frames.Closed, frames.Garbage):
        raise
    except _Unsupported as error:
        return _verdict("unsupported", message=str(error))
    except _Forged as error:
        return _verdict("forged", message=f"the program answered with no literal: {error}")
    except BaseException as error:
        return _failed(session, error)
    return _verdict("passed")


def _failed(session: Session, error: BaseException) -> dict[str, str]:
    name = str(getattr(error, "remote_name", type(error).__name__))
    message = str(error)[:SHOWN]
    if name == "MemoryError":
        return _verdict("memory", name, message)
    if isinstance(error, AssertionError) and error is not session.raised:
        if session.claimed_equality:
            return _verdict("forged", message="an object that claims to equal everything")
        return _verdict("assertion", name, message)
    return _verdict("exception", name, message)


def _verdict(kind: str, exception: str = "", message: str = "") -> dict[str, str]:
    return {"class": kind, "exception": exception, "message": message}

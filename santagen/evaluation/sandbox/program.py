"""Inside the sandbox, in the process that is the program: load it, answer calls, or run it.

Nothing this process says is a verdict. It answers a checker's calls with plain literals, and the
checker, which never sees the program, decides. Two modes ask for more trust: `in_process`, marked
in results, runs the tests here too (a nonce and strict equality stop what doesn't aim at santagen,
and decoys of the test most of what does), and `command` reports a command's exit code.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import operator
import os
import socket
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from santagen.evaluation.sandbox import frames
from santagen.evaluation.sandbox.literals import (
    NotLiteral,
    decode,
    encode,
    equals_all,
    is_mutable,
)

MODULE = "program"
EQUAL = "__santagen_equal__"
SHOWN = 500  # characters of an error message that are passed on
OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda item, *args, **kwargs: item(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "isinstance": lambda kind, item: isinstance(item, kind),
    "len": len,
    "bool": bool,
    "str": str,
    "contains": operator.contains,
    "item": operator.getitem,
    "set_item": operator.setitem,
    "iter": iter,
    "next": next,
}


def serve_program(channel: socket.socket, job: dict[str, Any]) -> None:
    """Run one job to its end; returns when the other side has heard enough."""
    if job["mode"] == "command":
        frames.send(channel, _run_commands(job))
        return
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    failure = _execute(job["program"], module.__dict__)
    if failure is None and job["mode"] == "in_process":
        module.__dict__[EQUAL] = _strictly_equal
        failure = _execute(job["test"], module.__dict__, _StrictEquality())
    frames.send(channel, failure or {"ready": job["nonce"]})
    if failure is None and job["mode"] == "pipe":
        Answering(channel, module.__dict__).serve()


class Answering:
    """Does what the test asks for (see `session`), on the program's names and on objects that it
    returned before.
    """

    def __init__(self, channel: socket.socket, names: dict[str, Any]) -> None:
        self.channel, self.names = channel, names
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}  # id of an object: its place in the list

    def serve(self) -> None:
        while True:
            frames.send(self.channel, self._answer(frames.receive(self.channel)))

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The result, and the arguments where the program changed them."""
        try:
            args, kwargs = self._decode(asked["args"]), self._decode(asked["kwargs"])
            result = OPERATIONS[asked["do"]](self._target(asked), *args, **kwargs)
            answer = {"result": self._encode(result)}
            if is_mutable(args):
                after = self._encode(args)
                if json.dumps(after) != json.dumps(asked["args"]):
                    answer["args"] = after
            return answer
        except BaseException as error:
            return _failure(error)

    def _target(self, asked: dict[str, Any]) -> Any:
        if "on" in asked:
            return self._objects[asked["on"]]
        return self._named(asked["name"])

    def _named(self, name: str) -> Any:
        if name not in self.names:
            raise NameError(f"name '{name}' is not defined")
        return self.names[name]

    def _call_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have the test's function called, and answer what it asks meanwhile."""
        handed = {"args": self._encode(args), "kwargs": self._encode(kwargs)}
        frames.send(self.channel, {"callback": number, **handed})
        while "do" in (said := frames.receive(self.channel)):
            frames.send(self.channel, self._answer(said))
        if "error" in said:
            kind = getattr(builtins, said["error"], RuntimeError)
            raise kind(said["message"])
        return self._decode(said["result"])

    def _encode(self, value: Any) -> Any:
        return encode(value, False, self._refer)

    def _refer(self, value: Any) -> dict[str, Any]:
        if isinstance(value, _Callback):
            return {"k": value.number}
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        number = self._numbers[id(value)]
        return {"o": type(value).__name__, "x": equals_all(value), "h": number}

    def _decode(self, data: Any) -> Any:
        return decode(data, self._resolve)

    def _resolve(self, tag: dict[str, Any]) -> Any:
        if "h" in tag:
            return self._objects[tag["h"]]
        if "p" in tag:
            return self._named(tag["p"])
        if "n" in tag:
            module, name = tag["n"]
            return getattr(importlib.import_module(module), name)
        return _Callback(self._call_back, tag["k"])


class _Callback:
    """A function of the test's, as the program sees it."""

    def __init__(self, call: Callable[..., Any], number: int) -> None:
        self._call, self.number = call, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self.number, args, kwargs)


class _StrictEquality(ast.NodeTransformer):
    """`a == b` in a test becomes `_strictly_equal(a, b)`."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
            return node
        function = ast.Name(EQUAL, ast.Load())
        return ast.copy_location(ast.Call(function, [node.left, *node.comparators], []), node)


def _strictly_equal(one: Any, other: Any) -> Any:
    """Equality that isn't the object's own claim where the other side is a literal."""
    try:
        plain = decode(encode(other, True))
    except NotLiteral:
        return one == other
    return decode(encode(one)) == plain


def _execute(
    source: str, names: dict[str, Any], change: ast.NodeTransformer | None = None
) -> dict[str, Any] | None:
    """None, or how it failed."""
    try:
        what: Any = source
        if change is not None:
            what = ast.fix_missing_locations(change.visit(ast.parse(source)))
        code = compile(what, f"<{MODULE}>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return {"syntax": _text(error), "name": type(error).__name__}
    except (MemoryError, RecursionError) as error:
        return _failure(error)
    try:
        exec(code, names)
    except BaseException as error:
        return _failure(error)
    return None


def _failure(error: BaseException) -> dict[str, Any]:
    name = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__
    if isinstance(error, NotLiteral):
        name = "ValueError"
    return {"error": name, "message": _text(error)}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:SHOWN]
    except BaseException:  # a program's own exception may fail here too
        return ""


def _run_commands(job: dict[str, Any]) -> dict[str, Any]:
    """Write the program to its file and run the commands, the last of which is the test."""
    with open(job["file"], "w", encoding="utf-8", newline="") as file:
        file.write(job["program"])
    commands = job["commands"]
    for at, command in enumerate(commands):
        with open("stderr", "wb+") as errors:
            try:
                code = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    close_fds=True,
                    check=False,
                ).returncode
            except OSError as error:
                return {"infrastructure": f"{command[0]} can't be started: {error}"}
            errors.seek(0)
            said = errors.read(1 << 16).decode("utf-8", "replace").strip()[-SHOWN:]
        if code:
            last = at == len(commands) - 1
            return {"exit": code, "stage": "run" if last else "compile", "message": said}
    return {"exit": 0}


def leave(code: int) -> NoReturn:
    """End without running anything the program registered."""
    os._exit(code)

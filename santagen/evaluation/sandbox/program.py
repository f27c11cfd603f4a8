"""Inside the sandbox, in the process that is the program: load it, answer calls, or run it.

Nothing this process says is a verdict. It answers a checker's calls with plain literals, and the
checker, which never sees the program, decides. Two modes ask for more trust and are marked in
results: `in_process` runs the tests here too (a nonce and strict equality stop what doesn't aim at
santagen), and `command` reports a command's exit code.
"""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import types
from typing import Any, NoReturn

from santagen.evaluation.sandbox import frames
from santagen.evaluation.sandbox.literals import NotLiteral, decode, encode, is_mutable

MODULE = "program"
EQUAL = "__santagen_equal__"
SHOWN = 500  # characters of an error message that are passed on


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
        while True:
            frames.send(channel, _answer(frames.receive(channel), module.__dict__))


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


def _answer(call: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """The result of one call, and its arguments where the program changed them."""
    arguments = decode(call["args"])
    keywords = decode(call["kwargs"])
    try:
        if call["name"] not in names:
            raise NameError(f"name '{call['name']}' is not defined")
        result = encode(names[call["name"]](*arguments, **keywords))
        answer = {"result": result}
        if is_mutable(arguments):
            after = encode(arguments)
            if json.dumps(after) != json.dumps(call["args"]):
                answer["args"] = after
        return answer
    except BaseException as error:
        return _failure(error)


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

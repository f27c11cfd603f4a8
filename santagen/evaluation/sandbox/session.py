"""The test's view of a program: stand-ins for its functions, classes and objects.

    Named     a function or class of the program's, by its name
    Remote    an object that one of them returned: it stays in the program, and has a number here

What a test does with them crosses to the program, and plain literals come back. A function of the
test's own that is handed over stays here too: the program calls it back, with literals. Nothing the
program says is believed beyond those values, and no stand-in equals anything but itself.

    here -> program   {"do": operation, "name": ... or "on": number, "args": .., "kwargs": ..}
    program -> here   {"result": value, "args": the arguments, where they changed}
                      {"error": name, "message": text}
                      {"callback": number, "args": .., "kwargs": ..}   meanwhile, answered alike
"""

from __future__ import annotations

import builtins
import socket
import sys
from types import FunctionType
from typing import Any

from santagen.evaluation.sandbox import frames
from santagen.evaluation.sandbox.literals import (
    NotLiteral,
    Opaque,
    decode,
    encode,
    update_in_place,
)

SHOWN = 500
LARGEST_ANSWER = 16 << 20  # bytes


class RemoteError(Exception):
    """An exception of the program's own making, or one that doesn't derive from Exception."""


class Forged(Exception):
    """The program sent something that no honest one could."""


class Unsupported(Exception):
    """The test hands over something that can't cross."""


class Named:
    """A name of the program's. Calling it, asking for an attribute and isinstance cross over."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.ask("call", {"name": self.__name__}, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        _refuse_special(name)
        return self._session.ask("get", {"name": self.__name__}, (name,))

    def __instancecheck__(self, item: Any) -> bool:
        if not isinstance(item, Remote):  # the program's classes have no instances here
            return False
        return self._session.ask("isinstance", {"name": self.__name__}, (item,)) is True


class Remote(Opaque):
    """An object of the program's. Operators a test may use cross over; equality never does."""

    def __init__(self, session: Session, number: int, type_name: str, *, equals_all: bool) -> None:
        own = {
            "_session": session, "_number": number, "type_name": type_name,
            "equals_all": equals_all,
        }  # fmt: skip
        self.__dict__.update(own)

    def _ask(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        return self._session.ask(operation, {"on": self._number}, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        _refuse_special(name)
        return self._ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", *args, **kwargs)

    def __len__(self) -> int:
        return _of_type(int, self._ask("len"))

    def __bool__(self) -> bool:
        return _of_type(bool, self._ask("bool"))

    def __str__(self) -> str:
        return _of_type(str, self._ask("str"))

    def __contains__(self, item: Any) -> bool:
        return _of_type(bool, self._ask("contains", item))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("set_item", key, value)

    def __iter__(self) -> Any:
        found = self._ask("iter")
        return found if isinstance(found, Remote) else iter(found)

    def __next__(self) -> Any:
        return self._ask("next")


def _refuse_special(name: str) -> None:
    """Python's own protocols (copying, pickling, ...) find nothing here."""
    if name.startswith("__"):
        raise AttributeError(name)


def _of_type(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise Forged(f"{kind.__name__}() that gives a {type(value).__name__}")
    return value


class Session:
    """The program on the other end of `channel`."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.raised: Exception | None = None  # the last exception that came from the program
        self.claimed_equality = False
        self._objects: dict[int, Remote] = {}
        self._callbacks: list[FunctionType] = []

    def receive(self) -> dict[str, Any]:
        message = frames.receive(self.channel, LARGEST_ANSWER)
        if type(message) is not dict:
            raise frames.Garbage("not an object")
        return message

    def ask(
        self,
        operation: str,
        target: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The result of an operation on the program's `target`, or the exception it raised."""
        handed = {"args": self._encode(args), "kwargs": self._encode(kwargs or {})}
        frames.send(self.channel, {"do": operation, **target, **handed})
        answer = self.receive()
        while "callback" in answer:
            frames.send(self.channel, self._called_back(answer))
            answer = self.receive()
        if "error" in answer:
            raise self._exception(answer)
        try:
            result = self._decode(answer["result"])
            if "args" in answer:
                update_in_place(args, self._decode(answer["args"]))
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise Forged(str(error)) from None
        self.claimed_equality |= isinstance(result, Opaque) and result.equals_all
        return result

    def _called_back(self, call: dict[str, Any]) -> dict[str, Any]:
        """A function of the test's, called by the program."""
        try:
            function = self._callback(call["callback"])
            args, kwargs = self._decode(call["args"]), self._decode(call["kwargs"])
            if type(args) is not tuple or type(kwargs) is not dict:
                raise ValueError("no arguments")
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise Forged(str(error)) from None
        try:
            result = function(*args, **kwargs)
        except (frames.Closed, frames.Garbage, Forged, Unsupported, MemoryError):
            raise
        except Exception as error:
            return {"error": type(error).__name__, "message": str(error)[:SHOWN]}
        return {"result": self._encode(result)}

    def _callback(self, number: Any) -> FunctionType:
        if type(number) is not int or not 0 <= number < len(self._callbacks):
            raise ValueError("no function of the test's")
        return self._callbacks[number]

    def _encode(self, value: Any) -> Any:
        try:
            return encode(value, True, self._refer)
        except NotLiteral as error:
            raise Unsupported(str(error)) from None

    def _refer(self, value: Any) -> dict[str, Any] | None:
        """What the program can find by itself, or ask for; None for anything else."""
        kind = type(value)
        if kind is Remote:
            return {"h": value._number}
        if kind is Named:
            return {"p": value.__name__}
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        standard = module in sys.stdlib_module_names and isinstance(name, str)
        if standard and getattr(sys.modules.get(str(module)), str(name), None) is value:
            return {"n": [module, name]}
        if kind is FunctionType:
            if value not in self._callbacks:
                self._callbacks.append(value)
            return {"k": self._callbacks.index(value)}
        return None

    def _decode(self, data: Any) -> Any:
        return decode(data, self._resolve)

    def _resolve(self, tag: dict[str, Any]) -> Any:
        if "k" in tag:
            return self._callback(tag["k"])
        number = tag.get("h")
        if "o" not in tag or type(number) is not int:
            raise ValueError("an unknown tag")
        if number not in self._objects:
            name, claims = str(tag["o"])[:100], tag.get("x") is True
            self._objects[number] = Remote(self, number, name, equals_all=claims)
        return self._objects[number]

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

"""One table of settings per command: each option is a field of a dataclass, written as one line.

    flag  >  environment variable  >  --config file  >  default

Typer only splits the command line; reading, checking and ranking the values happens here, alike for
every source, so that a fault names the place it came from. Of all options only --config is known
here by name.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from santagen.config import parse_size
from santagen.errors import SantagenError

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is written: `parse` takes text or a TOML value, or raises ValueError.

    `many` options take several values; `flag` options take none. `unescape` decodes backslashes in
    text that a shell handed over, never in a file, which has escapes of its own.
    """

    metavar: str
    parse: Callable[[Any], Any]
    many: bool = False
    flag: bool = False
    unescape: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of a command, as the help shows it and as the sources set it."""

    name: str
    flags: tuple[str, ...]  # empty for the positional argument
    kind: Kind
    default: Any
    panel: str
    help: str
    secret: bool
    shown_default: str | None
    in_file: bool


@dataclass(frozen=True, slots=True)
class Resolved(Generic[Options]):
    """The settings in force, and where each came from ("flag --n", "environment ...", ...)."""

    options: Options
    origins: dict[str, str]


def option(
    panel: str,
    kind: Kind,
    default: Any,
    *flags: str,
    help: str,
    shown_default: str | None = None,
    secret: bool = False,
    in_file: bool = True,
) -> Any:
    """Declare a field of an options dataclass. `flags` are its spellings, the main one first."""
    about = {
        "flags": flags, "kind": kind, "panel": panel, "help": help,
        "shown_default": shown_default, "secret": secret, "in_file": in_file,
    }  # fmt: skip
    if isinstance(default, list):
        raise TypeError("a default is immutable: use a tuple")
    return dataclasses.field(default=default, metadata=about)


def settings_of(options: type) -> list[Setting]:
    """The table of an options dataclass, in order."""
    return [
        Setting(name=field.name, default=field.default, **field.metadata)
        for field in dataclasses.fields(options)
    ]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ValueError("a whole number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("a number")
    try:
        return float(value)
    except ValueError:
        raise ValueError("a number") from None


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("a size")
    try:
        if isinstance(value, str) and re.fullmatch(r"[\d.]*\.\d*", value.strip()):
            raise ValueError("a whole number, or a size like 4k, 32K or 1M")  # 1.5k is 1,500
        size = parse_size(value)
    except SantagenError:
        raise ValueError("a number, or a size like 4k, 32K or 1M") from None
    if size < 1:
        raise ValueError("at least 1")
    return size


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError("true or false")
    return words[value.lower()]


TEXT = Kind("TEXT", _text)
WHOLE = Kind("N", _whole)
NUMBER = Kind("X", _number)
SIZE = Kind("SIZE", _size)
SWITCH = Kind("", _switch, flag=True)
TEXTS = Kind("TEXT", _text, many=True)
ESCAPED_TEXTS = Kind("TEXT", _text, many=True, unescape=True)


def choice(*words: str) -> Kind:
    """One of a few words."""

    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return str(value)

    return Kind(f"[{'|'.join(words)}]", parse)


def unescape(text: str) -> str:
    r"""Decode \n, \t, \r and \\; any other backslash stays as it is."""
    plain = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    decoded, rest = [], iter(text)
    for char in rest:
        follower = next(rest, "") if char == "\\" else ""
        decoded.append(plain.get(follower, char + follower) if char == "\\" else char)
    return "".join(decoded)


def variable(command: str, setting: Setting) -> str:
    """The environment variable of an option: SANTAGEN_GENERATE_TOP_P."""
    return f"SANTAGEN_{command}_{setting.name}".upper()


def resolve(
    options: type[Options],
    command: str,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    commands: Collection[str] = (),
) -> Resolved[Options]:
    """Rank the sources. `flags` is what Typer split off the command line, None where absent; a
    file's tables that are named after one of the other `commands` are theirs."""
    table = settings_of(options)
    config = flags.get("config") or environment.get(f"SANTAGEN_{command}_CONFIG".upper())
    file = _read_config(Path(config), command, table, commands) if config else {}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in table:
        name, env = setting.name, variable(command, setting)
        if flags.get(name) not in (None, [], ()):
            place = setting.flags[0] if setting.flags else name.upper()
            values[name] = _read(setting, flags[name], place, from_shell=True)
            origins[name] = f"flag {place}" if setting.flags else "argument"
        elif environment.get(env, "") != "":
            values[name] = _read_variable(setting, environment[env], env)
            origins[name] = f"environment {env}"
        elif name in file:
            values[name] = _read(setting, file[name], f"{name} in {config}", from_shell=False)
            origins[name] = f"file {config}"
        else:
            values[name], origins[name] = setting.default, "default"
    return Resolved(options(**values), origins)


def _read(setting: Setting, value: Any, place: str, from_shell: bool) -> Any:
    kind = setting.kind
    several = value if isinstance(value, (list, tuple)) else [value]
    if not kind.many and isinstance(value, (list, tuple)):
        raise _refusal(setting, value, place, "a single value")
    parsed = []
    for item in several:
        try:
            one = kind.parse(item)
        except ValueError as error:
            raise _refusal(setting, item, place, str(error)) from None
        parsed.append(unescape(one) if kind.unescape and from_shell else one)
    return tuple(parsed) if kind.many else parsed[0]


def _read_variable(setting: Setting, text: str, name: str) -> Any:
    """A variable of a repeatable option is one value as it stands, or a JSON list of them."""
    if setting.kind.many and text.startswith("["):
        try:
            return _read(setting, json.loads(text), name, from_shell=False)
        except json.JSONDecodeError:
            raise _refusal(setting, text, name, "one value or a JSON list") from None
    return _read(setting, text, name, from_shell=True)


def _refusal(setting: Setting, value: Any, place: str, wanted: str) -> SantagenError:
    shown = "the value given" if setting.secret else repr(value)
    return SantagenError(
        f"{place} can't be {shown}; it takes {wanted}.",
        f"{setting.flags[0] if setting.flags else setting.name.upper()}: {setting.help}",
    )


def _read_config(
    path: Path, command: str, table: Iterable[Setting], commands: Collection[str]
) -> dict[str, Any]:
    """A TOML file's keys: at the top level, or in a table named after the command, which wins.

    The tables of other commands are left alone, so that one file can serve them all.
    """
    hint = f"Write keys like top_p = 0.95, at the top or under [{command}]."
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a BOM
    except OSError as error:
        reason = error.strerror or error
        raise SantagenError(f"--config {path} can't be read: {reason}.", hint) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SantagenError(f"--config {path} is not TOML: {error}.", hint) from None
    except RecursionError:
        raise SantagenError(f"--config {path} is nested too deep to be settings.", hint) from None
    own = content.pop(command, {})
    if not isinstance(own, dict):
        raise SantagenError(f"{command} in {path} is not a table.", hint)
    shared = {
        key: value
        for key, value in content.items()
        if not (key in commands and isinstance(value, dict))
    }
    merged = {key.replace("-", "_"): value for key, value in {**shared, **own}.items()}
    known = sorted(setting.name for setting in table if setting.in_file)
    for key in merged:
        if key not in known:
            raise SantagenError(
                f"{path} sets {key!r}, which {command} does not know.",
                f"Its keys are {', '.join(known)}.",
            )
    return merged

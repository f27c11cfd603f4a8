"""A run in words: its settings and where they come from, its versions, the command that resumes it.

A secret's value is in none of them.
"""

from __future__ import annotations

import json
import platform
import shlex
from importlib import metadata
from typing import Any

from santagen import __version__
from santagen.cli.settings import Resolved, Setting, settings_of, variable


def show_config(resolved: Resolved[Any], command: str) -> str:
    """Every setting with its origin, as a TOML file that --config would take."""
    lines = []
    for setting in settings_of(type(resolved.options)):
        value = getattr(resolved.options, setting.name)
        if value is None or value == ():
            text = f"# {setting.name} is not set"
        elif setting.secret:
            text = f"# {setting.name} is set"
        else:
            text = f"{'' if setting.in_file else '# '}{setting.name} = {_toml(value)}"
        lines.append((text, resolved.origins[setting.name]))
    width = min(max(len(text) for text, _ in lines), 48)
    table = [f"{text:<{width}}  # {origin}" for text, origin in lines]
    return "\n".join([f"[{command}]", *table])


def plain_settings(options: Any) -> dict[str, Any]:
    """Every setting that is no secret, for the record of a run."""
    return {s.name: getattr(options, s.name) for s in settings_of(type(options)) if not s.secret}


def versions() -> dict[str, str]:
    """santagen, Python and the packages that decide a result."""
    found = {"santagen": __version__, "python": platform.python_version()}
    for package in ("torch", "tokenizers", "safetensors", "flash-attn", "triton"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def command_line(resolved: Resolved[Any], command: str) -> tuple[list[str], dict[str, str]]:
    """The words that give these settings to another process of the same environment.

    Secrets are not among them: they are the second part, as environment variables.
    """
    words: list[str] = []
    last: list[str] = []
    secrets: dict[str, str] = {}
    for setting in settings_of(type(resolved.options)):
        value = getattr(resolved.options, setting.name)
        if not resolved.origins[setting.name].startswith(("flag", "argument")):
            continue
        if setting.secret:
            secrets[variable(command, setting)] = str(value)
        elif setting.flags:
            words += _flag_words(setting, value)
        else:
            last = list(value)
    return [command, *words, *(["--", *last] if last else [])], secrets


def resume_command(resolved: Resolved[Any], command: str) -> str:
    """The command line that goes on with this run, wherever its settings came from."""
    words: list[str] = []
    last: list[str] = []
    for setting in settings_of(type(resolved.options)):
        origin = resolved.origins[setting.name]
        value = getattr(resolved.options, setting.name)
        if setting.name in ("overwrite", "resume") or setting.secret or value is None:
            continue
        if origin == "default" or origin.startswith("file "):
            continue  # the file itself is named by --config
        if not setting.flags:
            last = list(value)
        else:
            words += _flag_words(setting, value)
    return shlex.join(["santagen", command, *last, *words, "--resume"])


def _flag_words(setting: Setting, value: Any) -> list[str]:
    flag = setting.flags[0]
    if len(flag) == len("--n"):  # torchrun takes --n for a short form of its own options
        flag = setting.flags[-1]
    if setting.kind.flag:
        on, _, off = flag.partition("/")
        word = on if value else off
        return [word] if word else []
    words = []
    for item in value if setting.kind.many else [value]:
        text = _escape(item) if setting.kind.unescape else str(item)
        words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words


def _escape(text: str) -> str:
    """The inverse of settings.unescape."""
    for char, written in (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        text = text.replace(char, written)
    return text


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)

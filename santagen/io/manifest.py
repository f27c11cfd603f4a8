"""OUT.manifest.json: what a run is, so that it can be resumed, repeated and cited. Never holds a secret.

Written before the first sample and again at the end, each time whole and atomically. `identity` is the part that
decides the bytes of the output: a resume with another identity is refused, naming what differs.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from santagen.config import read_json
from santagen.errors import SantagenError

FORMAT_VERSION = 1
_SECRET_NAME = re.compile(r"token$|secret|password|api_key", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\bhf_[A-Za-z0-9]{8,}")


def manifest_path(output: Path) -> Path:
    return output.with_name(output.name + ".manifest.json")


def scrub(value: Any, name: str = "") -> Any:
    """A copy without secrets: values of secret-like names and hub tokens inside strings are masked."""
    if isinstance(value, dict):
        return {k: scrub(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(v, name) for v in value]
    if isinstance(value, str):
        return "***" if _SECRET_NAME.search(name) else _SECRET_VALUE.sub("hf_***", value)
    return value


def write_manifest(output: Path, content: dict[str, Any]) -> None:
    """Replace the manifest of `output` in one step."""
    text = json.dumps({"format_version": FORMAT_VERSION, **scrub(content)}, indent=2, sort_keys=True)
    write_atomically(manifest_path(output), (text + "\n").encode())


def read_manifest(output: Path) -> dict[str, Any] | None:
    """The manifest of `output`, None where there is none."""
    path = manifest_path(output)
    if not path.exists():
        return None
    return read_json(path, "start the run again with --overwrite")


def check_identity(output: Path, earlier: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with a run that was started with something else; names every difference."""
    before = _flat(earlier.get("identity") or {})
    after = _flat(json.loads(json.dumps(scrub(now))))
    different = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    if different:
        listed = ", ".join(f"{name} was {before.get(name)!r} and is {after.get(name)!r}" for name in different[:6])
        raise SantagenError(
            f"{output} can't be resumed: {listed}.",
            "Give the same model, prompts and settings as before, or start again with --overwrite.",
        )


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or nothing, also when the machine stops in between."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, part in value.items():
        if isinstance(part, dict):
            flat.update(_flat(part, f"{prefix}{name}."))
        else:
            flat[prefix + name] = part
    return flat

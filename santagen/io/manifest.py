"""OUT.manifest.json: what a run is, so that it can be resumed, repeated and cited.

Written before the first sample and again at the end, each time whole and atomically. `identity` is
the part that decides the bytes of the output: a resume with another identity is refused, naming
what differs. Never holds a secret.

`run` holds what the last run made and how long it took. Where several groups shared the rows,
`samples_by_group` and `seconds_by_group` list what each wrote and how long it was busy: the rest of
`generation_seconds` it waited for the others. The merge of their parts comes after.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from santagen.config import read_json
from santagen.errors import SantagenError
from santagen.io.files import beside, write_atomically

FORMAT_VERSION = 1
ENDING = ".manifest.json"
OVERWRITE_HINT = "Start again with --overwrite, or choose another -o."
_SHOWN_DIFFERENCES = 6
_SECRET_NAME = re.compile(r"token$|secret|password|api_?key", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{8,}")


def manifest_path(output: Path) -> Path:
    return beside(output, ENDING)


def scrub(value: Any, name: str = "") -> Any:
    """A copy without secrets: what has a secret's name, and hub tokens inside any text."""
    if isinstance(value, dict):
        if _SECRET_NAME.search(name):
            return "***"
        return {scrub(str(key)): scrub(part, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(part, name) for part in value]
    if isinstance(value, str):
        return "***" if _SECRET_NAME.search(name) else _SECRET_VALUE.sub("hf_***", value)
    return value


def write_manifest(output: Path, content: dict[str, Any]) -> None:
    """Replace the manifest of `output` in one step."""
    whole = {"format_version": FORMAT_VERSION, **scrub(content)}
    text = json.dumps(whole, indent=2, sort_keys=True)
    write_atomically(manifest_path(output), [text.encode(), b"\n"])


def read_manifest(output: Path) -> dict[str, Any] | None:
    """The manifest of `output`, None where there is none."""
    path = manifest_path(output)
    if not path.exists():
        return None
    manifest = read_json(path, OVERWRITE_HINT.removesuffix("."))
    if manifest.get("format_version") != FORMAT_VERSION:
        raise SantagenError(
            f"{path} has format_version {manifest.get('format_version')!r}; "
            f"this santagen knows {FORMAT_VERSION}.",
            OVERWRITE_HINT,
        )
    return manifest


def check_identity(output: Path, earlier: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with a run that was started with something else; names what differs."""
    before = _flat(earlier.get("identity") or {})
    after = _flat(json.loads(json.dumps(scrub(now))))
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    if not names:
        return
    listed = [
        f"{name} was {before.get(name)!r} and is {after.get(name)!r}"
        for name in names[:_SHOWN_DIFFERENCES]
    ]
    if len(names) > _SHOWN_DIFFERENCES:
        listed.append(f"and {len(names) - _SHOWN_DIFFERENCES} more")
    raise SantagenError(
        f"{output} can't be resumed: {', '.join(listed)}.",
        "Give the same model, prompts and settings as before, or start again with --overwrite.",
    )


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    flat: dict[str, Any] = {}
    for name, part in value.items():
        if isinstance(part, dict):
            flat.update(_flat(part, f"{prefix}{name}."))
        else:
            flat[prefix + name] = part
    return flat

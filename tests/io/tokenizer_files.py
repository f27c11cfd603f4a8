"""Tokenizer directories for tests: the bundled one, changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import santagen

ASSETS = Path(santagen.__file__).parent / "assets"
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def copy_tokenizer(
    folder: Path, change: Callable[[dict[str, Any]], None] | None = None, mark: str = "-"
) -> Path:
    """A copy of the bundled tokenizer; `change` edits its JSON, `mark` spells its sentinels."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(ASSETS / name, folder / name)
        text = (folder / name).read_text("utf-8")
        (folder / name).write_text(text.replace("<fim-", f"<fim{mark}"), "utf-8")
    if change is not None:
        edit_json(folder / "tokenizer.json", change)
    return folder


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text("utf-8"))
    change(value)
    path.write_text(json.dumps(value), "utf-8")

"""What the doctor finds out about one model: whether it is here, what refuses it, its size.

A folder, or a hub model that is cached whole, is read as `santagen inspect` does. Of any other hub
model only the list of files is asked for, briefly; nothing is downloaded.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from santagen.checkpoint.inspection import Examination, parameter_count, run_dtype
from santagen.checkpoint.source import HUB_ID, resolve_model
from santagen.engine.packed_size import packed_bytes
from santagen.errors import SantagenError
from santagen.io.tokenizer import Tokenizer, has_tokenizer

SECONDS = 3  # for the hub's answer


def examine(model: str | None) -> dict[str, Any]:
    """ "state" is folder, cached, hub or absent; `refusals` are what a run would end with."""
    found: dict[str, Any] = {"model": model, "state": "absent", "directory": None, "refusals": []}
    try:
        if model is None or Path(model).expanduser().exists() or not HUB_ID.fullmatch(model):
            source = resolve_model(model)
            found |= {"model": source.name, "state": "folder", "directory": str(source.path)}
        elif (cached := _cached(model)) is not None:
            found |= {"state": "cached", "directory": str(cached)}
        else:
            found |= {"state": "hub", "download_bytes": _download_bytes(model)}
    except SantagenError as error:
        _refuse(found, error)
    if found["directory"] is not None:
        _read_headers(Path(found["directory"]), found)
    return found


def _refuse(found: dict[str, Any], error: SantagenError) -> None:
    found["refusals"].append({"message": error.message, "hint": error.hint})


def _read_headers(directory: Path, found: dict[str, Any]) -> None:
    examined = Examination.of(directory)
    if has_tokenizer(directory):
        examined.attempt("tokenizer", lambda: Tokenizer.from_directory(directory, examined.config))
    for _, error in examined.refusals:
        _refuse(found, error)
    if examined.config is not None:
        found["parameters"] = parameter_count(examined.config)["total"]
        found["gpu_dtype"] = run_dtype(examined.config)
        found["packed_bytes"] = (
            packed_bytes(examined, found["gpu_dtype"]) if examined.settings is not None else None
        )


def _cached(model: str) -> Path | None:
    """The folder of a hub model whose weights are in the cache."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(model, local_files_only=True))
    except Exception:  # not cached; why is told by who downloads
        return None
    return folder if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")) else None


def _download_bytes(model: str) -> int:
    """Bytes that a run would download. Raises SantagenError where the hub doesn't have the model
    or doesn't answer soon."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise SantagenError(
            f"{model} is not in the hub's cache, and HF_HUB_OFFLINE is set.",
            "Unset HF_HUB_OFFLINE once to download it, or give a local folder.",
        )
    answer: list[Any] = []

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            answer.append(HfApi().model_info(model, files_metadata=True, timeout=SECONDS))
        except Exception as error:  # any HTTP client's error: all mean that it can't be fetched
            answer.append(error)

    asking = threading.Thread(target=ask, daemon=True)  # a name may take minutes to be looked up
    asking.start()
    asking.join(SECONDS + 1)
    if not answer or isinstance(answer[0], Exception):
        reason = type(answer[0]).__name__ if answer else f"no answer in {SECONDS} seconds"
        raise SantagenError(
            f"{model} is not in the hub's cache, and the hub did not tell about it ({reason}).",
            "Check the name and the network, set HF_TOKEN for a gated model, or give a folder.",
        )
    sizes = {file.rfilename: file.size or 0 for file in answer[0].siblings or []}
    top = {name: size for name, size in sizes.items() if "/" not in name}
    weights = [size for name, size in top.items() if name.endswith(".safetensors")]
    return sum(weights or [size for name, size in top.items() if name.endswith(".bin")])

"""From what the user calls a model to a directory on disk: the bundled model, a local folder, or a hub id.

The hub is reached through huggingface_hub alone, which honours HF_HOME, HF_HUB_OFFLINE and HF_TOKEN; it is imported only
when a hub id is given. Downloads data files only: no code of a repository is ever fetched or run.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from santagen.errors import SantagenError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SMALL_FILES = ["*.json", "tokenizer*", "vocab*", "merges.txt", "*.model"]
SAMPLE_BYTES = 65536


@dataclass(frozen=True)
class ModelSource:
    """Where a model lies. `revision` is the commit that the hub resolved, None for local folders."""

    path: Path
    name: str
    bundled: bool = False
    revision: str | None = None


def bundled_model() -> Path:
    """The small model that ships inside the package."""
    return Path(__file__).resolve().parent.parent / "assets"


def resolve_model(
    model: str | None, *, revision: str | None = None, token: str | None = None
) -> ModelSource:
    """The directory of `model` (None: the bundled one), downloaded if it is a hub id that is not cached."""
    if model is None:
        return ModelSource(bundled_model(), "santagen-tiny (bundled)", bundled=True)
    path = Path(model).expanduser()
    if path.is_dir():
        if revision is not None:
            raise SantagenError(
                f"--revision {revision} was given with the local folder {model}.", "Leave --revision out."
            )
        return ModelSource(path, model)
    if path.is_file():
        raise SantagenError(f"{model} is a file.", "Give the folder that holds it, beside config.json.")
    looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model
    if looks_local or ".." in model or not HUB_ID.fullmatch(model):
        raise SantagenError(
            f"There is no model folder {model}.", "Give an existing folder, or a hub id such as bigcode/santacoder."
        )
    return _download(model, revision, token)


def _download(model: str, revision: str | None, token: str | None) -> ModelSource:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub import errors as hub_errors

    offline = constants.HF_HUB_OFFLINE
    try:
        weights = ["*.safetensors"]
        if not offline:
            names = HfApi(token=token).list_repo_files(model, revision=revision)
            if not any(name.endswith(".safetensors") for name in names):
                weights = ["pytorch_model*.bin"]
        else:
            weights += ["pytorch_model*.bin"]
        folder = snapshot_download(
            model, revision=revision, token=token, allow_patterns=[*SMALL_FILES, *weights]
        )
    except hub_errors.GatedRepoError:
        raise SantagenError(
            f"{model} is gated: its owner asks you to accept terms first.",
            "Accept them on the model's page, then give --hf-token or set HF_TOKEN.",
        ) from None
    except hub_errors.RevisionNotFoundError:
        raise SantagenError(f"{model} has no revision {revision!r}.", "Check --revision.") from None
    except hub_errors.RepositoryNotFoundError:
        raise SantagenError(
            f"There is no folder {model} here and no such model on the hub (or it is private).",
            "Check the name; for a private model give --hf-token or set HF_TOKEN.",
        ) from None
    except hub_errors.LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if offline else "the hub can't be reached"
        raise SantagenError(
            f"{model} is neither a folder here nor in the hub's cache, and {why}.",
            "Give a local folder, or download the model once with network access.",
        ) from None
    except (OSError, hub_errors.HfHubHTTPError, hub_errors.HFValidationError, RuntimeError, ValueError) as error:
        raise SantagenError(
            f"{model} is no folder here and could not be fetched from the hub ({type(error).__name__}).",
            "Check the name and the network, or give a local folder.",
        ) from None
    commit = Path(folder).name
    return ModelSource(Path(folder), model, revision=commit)


def model_fingerprint(path: Path) -> str:
    """SHA-256 of config.json and of every weight file's name, size, start and end; the folder's name is left out."""
    digest = hashlib.sha256()
    config = path / "config.json"
    if config.is_file():
        digest.update(config.read_bytes())
    weights = [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin"), *path.glob("*.index.json")]
    for file in sorted(weights, key=lambda f: f.name):
        size = file.stat().st_size
        digest.update(f"\0{file.name}\0{size}\0".encode())
        with file.open("rb") as handle:
            for start in sorted({0, size // 3, 2 * size // 3, max(0, size - SAMPLE_BYTES)}):
                handle.seek(start)
                digest.update(handle.read(SAMPLE_BYTES))
    return digest.hexdigest()

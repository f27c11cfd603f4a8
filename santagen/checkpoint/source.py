"""From what the user calls a model to a directory: the bundled model, a folder, or a hub id.

The hub is reached through huggingface_hub alone, which honours HF_HOME, HF_HUB_OFFLINE and
HF_TOKEN; it is imported only when a hub id is given. Downloads data files only: no code of a
repository is ever fetched or run, and a token is never part of a message.
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from santagen.config import broken_link, read_json
from santagen.errors import SantagenError, without_token

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
SMALL_FILES = ["*.json", "tokenizer*", "vocab*", "merges.txt"]
SETTINGS = ("config.json", "generation_config.json", "quantize_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
WEIGHTS = ("*.safetensors", "pytorch_model*.bin*")
WEIGHT_FILES = (  # (all of a kind, the one that is read where it is there), in order of preference
    ("*.safetensors", "model.safetensors"),
    ("pytorch_model*.bin", "pytorch_model.bin"),
)
ANSWER_SECONDS = 10
SAMPLE_BYTES = 65536
SAMPLES = 8


@dataclass(frozen=True)
class ModelSource:
    """Where a model lies. `revision` is the commit the hub resolved, None for local folders."""

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
    """The directory of `model` (None: the bundled one), downloaded if it is an uncached hub id.

    A folder of that name wins over the hub. Raises SantagenError where there is neither.
    """
    path = Path(model).expanduser() if model else None
    if revision is not None and (path is None or path.exists()):
        given = "the bundled model" if path is None else f"the local folder {model}"
        raise SantagenError(
            f"The revision {revision} was given with {given}, which has no revisions.",
            "Leave the revision out, or name a hub model.",
        )
    if model is None:
        return ModelSource(bundled_model(), "santagen-tiny (bundled)", bundled=True)
    return _find(model, "model", WEIGHTS, revision, token)


def resolve_tokenizer(name: str, *, token: str | None = None) -> ModelSource:
    """As `resolve_model`, for a tokenizer's sake: no weights are downloaded."""
    return _find(name, "tokenizer", ("tokenizer.json", ""), None, token)


def _find(
    model: str, what: str, files: tuple[str, str], revision: str | None, token: str | None
) -> ModelSource:
    """A folder, or a hub id's snapshot with `files`: what is wanted, and what will do instead."""
    path = Path(model).expanduser() if model else None
    if path is not None and path.is_dir():
        return ModelSource(path, model)
    if path is not None and path.exists():
        raise SantagenError(
            f"{model} is a file, not a {what} folder.",
            "Give the folder that holds it.",
        )
    if ".." in model or not HUB_ID.fullmatch(model):  # so also anything that looks like a path
        raise SantagenError(
            f"There is no {what} folder {model!r}.",
            "Give an existing folder, or a hub id such as bigcode/santacoder.",
        )
    return _download(model, what, files, revision, token)


def _download(
    model: str, what: str, files: tuple[str, str], revision: str | None, token: str | None
) -> ModelSource:
    from huggingface_hub import errors as hub

    wanted, instead = files
    try:
        folder = fetch_snapshot(model, wanted, revision, token)
        if instead and not any(folder.glob(wanted)):
            folder = fetch_snapshot(model, instead, revision, token)
        if _lacks(folder, files) and not _hub_answers(model, revision, token):
            raise hub.LocalEntryNotFoundError(f"{folder} is all there is")
    except hub.GatedRepoError:
        raise SantagenError(
            f"{model} is gated: its owner asks you to accept terms first.",
            "Accept them on the model's page, then give --hf-token or set HF_TOKEN.",
        ) from None
    except hub.RevisionNotFoundError:
        raise SantagenError(
            f"The hub model {model} has no revision {revision!r}.",
            "Check the name of the branch, tag or commit.",
        ) from None
    except hub.RepositoryNotFoundError:
        raise SantagenError(
            f"There is no folder {model} here and no such {what} on the hub, or it is private.",
            "Check the name; for a private one give --hf-token or set HF_TOKEN.",
        ) from None
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled):
        raise _not_cached(model, what, revision) from None
    except Exception as error:  # any HTTP client's error, a full disk, a bad name: all end the run
        reason, cause = without_token(error, token)
        raise SantagenError(
            f"{model} could not be fetched from the hub ({type(error).__name__}: {reason}).",
            "Check the name, the network and the disk space, or give a local folder.",
        ) from cause
    return ModelSource(folder, model, revision=folder.name)


def _not_cached(model: str, what: str, revision: str | None) -> SantagenError:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub can't be reached"
    at = f" at revision {revision}" if revision else ""
    return SantagenError(
        f"{model} is neither a folder here nor complete in the hub's cache{at}, and {why}.",
        f"Give a local folder, or download the {what} once with network access.",
    )


def _lacks(folder: Path, files: tuple[str, str]) -> bool:
    """Whether a snapshot is without the file that is wanted; for a model, without config.json,
    weights, or a shard that its index names."""
    if files != WEIGHTS:
        return not (folder / files[0]).is_file()
    if not (folder / "config.json").is_file():
        return True
    for pattern, single in WEIGHT_FILES:
        index = folder / f"{single}.index.json"
        if not (folder / single).is_file() and index.is_file():
            return not all((folder / shard).is_file() for shard in _shards(index))
        if any(path.is_file() for path in folder.glob(pattern)):
            return False
    return True


def _shards(index: Path) -> set[str]:
    """The files that an index names; none where it is damaged, which its reader will say."""
    try:
        named = read_json(index, "download it again").get("weight_map")
    except SantagenError:
        return set()
    return {str(shard) for shard in named.values()} if isinstance(named, dict) else set()


def _hub_answers(model: str, revision: str | None, token: str | None) -> bool:
    """Whether the hub can be asked now: what it lacks itself is no fault of the cache."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(model, revision=revision, token=token, timeout=ANSWER_SECONDS)
    except Exception:  # of any HTTP client, or offline by choice
        return False
    return True


def fetch_snapshot(model: str, weights: str, revision: str | None, token: str | None) -> Path:
    """The snapshot folder with the small files and those weights, without its subfolders."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if sys.stderr is None or not sys.stderr.isatty():  # messages in a log stay whole lines
        disable_progress_bars()
    return Path(
        snapshot_download(
            model,
            revision=revision,
            token=token,
            allow_patterns=[*SMALL_FILES, weights],
            ignore_patterns=["*/*"],
        )
    )


def refuse_broken_links(path: Path) -> None:
    """Refuse a model folder that has a link to nothing where its weights should be.

    Links beside the one file that is read, or of the kind that is not read, are let be.
    """
    for pattern, single in WEIGHT_FILES:
        files = sorted(path.glob(pattern))
        if (path / single).is_file():
            return
        for file in files:
            if file.is_symlink() and not file.exists():
                raise broken_link(file)
        if files:
            return


def model_fingerprint(path: Path) -> str:
    """SHA-256 of the settings files and of every weight file's name, size, start and samples.

    Cheap on any size of model: reads at most half a MiB of a file. The folder's own name is not
    part of it. Raises SantagenError as `refuse_broken_links` does.
    """
    refuse_broken_links(path)
    digest = _digest(path, SETTINGS)
    found = [file for pattern, _ in WEIGHT_FILES for file in path.glob(pattern)]
    weights = [file for file in found if file.is_file()]
    for file in sorted(weights, key=lambda f: f.name):
        size = file.stat().st_size
        digest.update(f"\0{file.name}\0{size}\0".encode())
        last = max(0, size - SAMPLE_BYTES)
        with file.open("rb") as handle:
            for start in sorted({last * i // (SAMPLES - 1) for i in range(SAMPLES)}):
                handle.seek(start)
                digest.update(handle.read(SAMPLE_BYTES))
    return digest.hexdigest()


def tokenizer_fingerprint(path: Path) -> str | None:
    """SHA-256 of a folder's tokenizer files, None where there are none."""
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    return _digest(path, TOKENIZER_FILES).hexdigest()


def _digest(path: Path, names: tuple[str, ...]) -> hashlib._Hash:
    digest = hashlib.sha256()
    for name in names:
        if (path / name).is_file():
            digest.update(f"\0{name}\0".encode() + (path / name).read_bytes())
    return digest

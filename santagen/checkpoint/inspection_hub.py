"""A hub model's headers without its weights: a folder in which weight files are mostly holes.

    folder of the hub's cache      config.json, tokenizer files ...      linked
    *.safetensors                  header, and a GPTQ file's small integer tensors, by range; the
                                   rest is a hole of the right size, which takes no disk space

So that whatever reads headers from a folder reads a hub model too. Weights that are cached are used
as they are; pickled files, and hubs that can't be reached, are resolved as for a run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from santagen.checkpoint.layout import GPTQ_SCALARS
from santagen.checkpoint.safetensors_header import MAX_HEADER_BYTES, read_header
from santagen.checkpoint.source import HUB_ID, ModelSource, fetch_snapshot, resolve_model
from santagen.errors import SantagenError, without_token

FIRST_BYTES = 100_000  # holds most headers whole
INTEGER_PARTS = ("g_idx", "qzeros")
TIMEOUT_SECONDS = 30
REQUESTS_AT_ONCE = 8


@dataclass(frozen=True)
class _Remote:
    """A hub model at one commit; `sizes` are those of its safetensors files."""

    model: str
    commit: str
    sizes: dict[str, int]
    token: str | None = field(repr=False)

    def fetch(self, file: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file; fails where the server answers with others."""
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        headers = {**build_hf_headers(token=self.token), "range": f"bytes={start}-{stop - 1}"}
        url = hf_hub_url(self.model, file, revision=self.commit)
        answer = get_session().get(url, headers=headers, timeout=TIMEOUT_SECONDS)
        hf_raise_for_status(answer)
        if len(answer.content) != stop - start:
            raise OSError(f"{len(answer.content):,} bytes came for {stop - start:,} of {file}")
        return bytes(answer.content)


@contextmanager
def headers_source(
    model: str | None, *, revision: str | None = None, token: str | None = None
) -> Iterator[ModelSource]:
    """As `resolve_model`, but of an uncached hub model only what `inspect` reads is downloaded.

    The folder is gone when the block is left.
    """
    remote = None
    if model is not None and not Path(model).expanduser().exists() and HUB_ID.fullmatch(model):
        remote = _remote(model, revision, token)
    if remote is None or not remote.sizes:
        yield resolve_model(model, revision=revision, token=token)
        return
    with tempfile.TemporaryDirectory(prefix="santagen-headers-") as name:
        try:
            folder = fetch_snapshot(remote.model, "config.json", remote.commit, token)
            if not _is_complete(folder, remote):
                folder = _skeleton(Path(name), folder, remote)
        except SantagenError:
            raise
        except Exception as error:  # of any HTTP client, or a full disk: all end it alike
            reason, cause = without_token(error, token)
            raise SantagenError(
                f"The headers of {model} could not be fetched from the hub "
                f"({type(error).__name__}: {reason}).",
                "Try again, or download the model and give its folder.",
            ) from cause
        yield ModelSource(folder, remote.model, revision=remote.commit)


def _remote(model: str, revision: str | None, token: str | None) -> _Remote | None:
    """What the hub lists of the model; None where it doesn't answer."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(model, revision=revision, files_metadata=True, token=token)
    except Exception:  # resolve_model asks again: it finds a cached model, or says what is wrong
        return None
    sizes = {
        file.rfilename: file.size
        for file in info.siblings or ()
        if file.rfilename.endswith(".safetensors")
        and "/" not in file.rfilename
        and file.size is not None
    }
    return _Remote(model, str(info.sha), sizes, token)


def _is_complete(folder: Path, remote: _Remote) -> bool:
    paths = {folder / file: size for file, size in remote.sizes.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def _skeleton(into: Path, folder: Path, remote: _Remote) -> Path:
    """Fill `into` with links to the small files and with weight files that are mostly holes."""
    for path in folder.iterdir():
        if path.is_file() and path.name not in remote.sizes:
            (into / path.name).symlink_to(path.resolve())
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        list(pool.map(lambda file: _write_header(into / file, remote), remote.sizes))
        ranges = [part for file in remote.sizes for part in _integer_tensors(into / file)]
        list(pool.map(lambda part: _write_range(into / part[0], part[1], part[2], remote), ranges))
    return into


def _write_header(path: Path, remote: _Remote) -> None:
    size = remote.sizes[path.name]
    start = remote.fetch(path.name, 0, min(size, FIRST_BYTES)) if size else b""
    stop = 8 + int.from_bytes(start[:8], "little")
    if len(start) < stop <= min(size, MAX_HEADER_BYTES):
        start += remote.fetch(path.name, len(start), stop)
    path.write_bytes(start)
    os.truncate(path, size)


def _integer_tensors(path: Path) -> list[tuple[str, int, int]]:
    """(file, first byte, bytes) of what GPTQ's checks read."""
    try:
        tensors, _ = read_header(path)
    except SantagenError:  # a damaged file: whoever reads the folder will say so
        return []
    return [
        (path.name, info.offset, info.nbytes)
        for name, info in tensors.items()
        if info.nbytes and (name.rpartition(".")[2] in INTEGER_PARTS or name in GPTQ_SCALARS)
    ]


def _write_range(path: Path, start: int, size: int, remote: _Remote) -> None:
    content = remote.fetch(path.name, start, start + size)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)

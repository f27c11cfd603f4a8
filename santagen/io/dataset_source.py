"""Prompt rows from a Hugging Face data set, its directory, or a local parquet or csv file.

`datasets` is imported when a data set is asked for, not before. Columns that santagen has no use
for are never decoded. Cells of a csv file are text to the letter: "NA" is not missing, and digits
in a prompt column stay digits.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from santagen.errors import SantagenError, without_token
from santagen.io.row_fields import BATCH_FIELDS, ID_FIELDS, PROMPT_FIELDS, SAMPLING_FIELDS
from santagen.io.sources import BOM, Digest

LOCAL_FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json", ".json": "json"}
REACH_SECONDS = 10.0
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")


class DatasetSource:
    """Rows of `name`'s split. `wanted` names columns to read besides (--prompt-column, --keep);
    `token` is for the hub alone, and kept nowhere."""

    whole_file = False
    is_list = False

    def __init__(
        self,
        name: str,
        split: str | None = None,
        wanted: Sequence[str] = (),
        token: str | None = None,
    ) -> None:
        self.name = name
        self._is_csv = name.lower().endswith(".csv") and Path(name).is_file()
        table = _load(name, split, token)
        known = {*ID_FIELDS, *PROMPT_FIELDS, *SAMPLING_FIELDS, *BATCH_FIELDS, *wanted}
        columns = [column for column in table.column_names if column in known]
        self._columns = list(table.column_names)
        self._table = table.select_columns(columns) if columns else None
        self._rows = table.num_rows

    def rows(self, digest: Digest | None = None) -> Iterator[tuple[int, Any]]:
        """(row number from 1, the row as a dict) of each row; see `sources.Source`."""
        if not self._rows:
            return
        if self._table is None:
            # Nothing in it is a prompt: say what there is, as each row's failure would.
            raise SantagenError(
                f"The data set {self.name} has no prompt column; its columns are "
                f"{', '.join(self._columns) or 'none'}.",
                "Name one with --prompt-column.",
            )
        for number, row in enumerate(self._table, start=1):
            if digest is not None:
                text = json.dumps(row, sort_keys=True, default=repr) + "\n"
                digest.update(text.encode("ascii"))
            yield number, _from_csv(row) if self._is_csv else row


def _load(name: str, split: str | None, token: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise SantagenError(
            f"{name} needs the package datasets, which can't be imported: {error}.",
            "Install it with: pip install datasets.",
        ) from None
    if sys.stderr is None or not sys.stderr.isatty():  # messages in a log stay whole lines
        datasets.disable_progress_bars()
    path = Path(name)
    if path.suffix.lower() in LOCAL_FORMATS and not path.exists():
        raise SantagenError(
            f"The data set file {name} does not exist.",
            "Check the path; a data set of the hub is called OWNER/NAME.",
        )
    try:
        if path.is_file():
            loaded = _load_file(datasets, path, split)
        else:
            with _offline_if_cut_off(datasets, path):
                loaded = datasets.load_dataset(name, split=split, token=token)
    except SantagenError:
        raise
    except Exception as error:  # datasets, pyarrow, pandas and the hub each raise their own
        _refuse(name, split, error, token)
    if isinstance(loaded, dict):
        if len(loaded) != 1:
            raise SantagenError(
                f"The data set {name} has {len(loaded)} splits: {', '.join(map(str, loaded))}.",
                "Choose one with --split.",
            )
        loaded = next(iter(loaded.values()))
    return loaded.with_format(None)


@contextmanager
def _offline_if_cut_off(datasets: Any, path: Path) -> Iterator[None]:
    """Where a first look doesn't reach the hub, let the libraries not wait for it in the block:
    they would try each file again and again. What is cached is used as before.
    """
    from huggingface_hub import constants, get_session

    if path.exists() or constants.HF_HUB_OFFLINE or datasets.config.HF_HUB_OFFLINE:
        yield
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_SECONDS)
    except Exception as error:  # of any HTTP client: no answer at all, since a bad one raises none
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        try:
            yield
        except ConnectionError:  # not the library's word, that someone switched the network off
            raise ConnectionError(
                f"it is not cached, and the hub gave no answer: {error}"
            ) from error
        finally:
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = False
    else:
        yield


def _refuse(name: str, split: str | None, error: Exception, token: str | None) -> NoReturn:
    reason, cause = without_token(error, token)
    part = f" (split {split})" if split else ""
    raise SantagenError(
        f"The data set {name}{part} can't be loaded: {reason}",
        "Check its name and --split, that the hub can be reached (or the data set is cached), "
        "or give a local .parquet, .csv or .jsonl file.",
    ) from cause


def _load_file(datasets: Any, path: Path, split: str | None) -> Any:
    form = LOCAL_FORMATS.get(path.suffix.lower())
    if form is None:
        raise SantagenError(
            f"--dataset {path} is a file that is neither parquet, csv nor JSON.",
            f"Give a text file without --dataset; data sets end in {', '.join(LOCAL_FORMATS)}.",
        )
    if _is_empty(path, form):  # of which datasets makes no table
        return datasets.Dataset.from_dict({})
    # A single file has no splits of its own: it answers to whatever name was asked for.
    base = re.split(r"\W", split)[0] if split else "train"
    settings: dict[str, Any] = {}
    if form == "csv":
        import pandas

        header = pandas.read_csv(path, nrows=0, encoding="utf-8-sig")
        settings = {
            "features": datasets.Features(dict.fromkeys(header.columns, datasets.Value("string"))),
            "keep_default_na": False,
            "na_filter": False,
            "encoding": "utf-8-sig",
        }
    return datasets.load_dataset(
        form, data_files={base or "train": str(path)}, split=split or "train", **settings
    )


def _is_empty(path: Path, form: str) -> bool:
    """Whether a local file has no rows, whatever its columns."""
    if form == "parquet":
        import pyarrow.parquet

        return bool(pyarrow.parquet.read_metadata(path).num_rows == 0)
    if form == "csv":
        import pandas

        try:
            return bool(pandas.read_csv(path, nrows=1, encoding="utf-8-sig").empty)
        except pandas.errors.EmptyDataError:
            return True
    with path.open("rb") as file:
        start = file.read(1 << 16)
        return not file.read(1) and b"".join(start.removeprefix(BOM).split()) in (b"", b"[]")


def _from_csv(row: dict[str, Any]) -> dict[str, Any]:
    """Give the cells of a csv row the types that the same row would have in JSON."""
    infilling = bool(row.get("prefix") or row.get("suffix"))
    fields: dict[str, Any] = {}
    for name, cell in row.items():
        typed = name in SAMPLING_FIELDS or name in ("prompt_token_ids", *BATCH_FIELDS)
        if cell == "" and (typed or name in ID_FIELDS or not (infilling or name == "prompt")):
            continue
        if cell == "" and name == "prompt" and (infilling or row.get("prompt_token_ids")):
            continue
        fields[name] = _csv_value(name, cell) if typed or name in ID_FIELDS else cell
    return fields


def _csv_value(name: str, cell: str) -> Any:
    if name in ID_FIELDS:
        return int(cell) if _INTEGER.fullmatch(cell) else cell
    if name == "stop" and not cell.startswith("["):
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell  # the row's own checks say what is wrong with it

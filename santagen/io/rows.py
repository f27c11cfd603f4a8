"""What one row of the input means: from a JSON object to a checked PromptRow.

Checks everything that needs neither a tokenizer nor a model, so that a whole file can be refused or
accepted before either is loaded. Text is taken to the letter. Fields that mean nothing here are
ignored, or kept when asked. Whether ids are unique is not seen from one row (`io.prompts`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from santagen.errors import RowError, SantagenError
from santagen.io.batch_rows import flatten_batch_row, is_batch_row
from santagen.io.row_fields import ID_FIELDS, INTEGER_FIELDS, PROMPT_FIELDS, SAMPLING_FIELDS
from santagen.io.sources import BadRow, decode_line
from santagen.request import PromptRow, RowId, SamplingParams

PROMPT_HINT = (
    "Give the row a prompt, a prefix with a suffix, or prompt_token_ids; "
    "--prompt-column NAME takes another field."
)


def parse_row(payload: Any, where: str) -> dict[str, Any]:
    """The fields of a payload (see `io.sources`), or a RowError that says why there are none."""
    if isinstance(payload, str):
        payload = {"prompt": payload}  # a .json file may be a list of strings
    elif isinstance(payload, bytes):
        payload = _parse_line(payload, where)
    if isinstance(payload, BadRow):
        raise RowError(f"{where}: {payload.error}", payload.hint)
    if not isinstance(payload, dict):
        raise RowError(
            f"{where}: the row is {_kind(payload)}, not a JSON object.",
            'Write it as an object, as in {"prompt": "def f("}.',
        )
    return payload


def _parse_line(line: bytes, where: str) -> Any:
    try:
        text = line.decode("utf-8").rstrip("\r\n")  # a column is counted on its own line
    except UnicodeDecodeError as error:
        raise RowError(
            f"{where}: the line is not UTF-8 text (byte {error.start}: 0x{line[error.start]:02x}).",
            "Write the file as UTF-8.",
        ) from None
    try:
        return decode_line(text)
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at")  # "... starting at"
        raise RowError(
            f"{where}: the line is not JSON: {fault} at column {error.colno}.",
            "Each line holds one whole JSON object; a file that is one plain prompt "
            "must not end in .jsonl.",
        ) from None
    except RecursionError as error:
        raise RowError(
            f"{where}: the line can't be read as JSON: {error}.", "Mend the row."
        ) from None


class RowReader:
    """Turns the fields of rows into PromptRows, with the same options for all of them.

    `defaults`, when given, are the settings that rows override: a row that is wrong only together
    with them (n 20 from a flag, temperature 0 from the row) is then found here too.
    """

    def __init__(
        self,
        keep: Sequence[str] = (),
        prompt_column: str | None = None,
        defaults: SamplingParams | None = None,
    ) -> None:
        self._keep = tuple(keep)
        self._prompt_column = prompt_column
        self._defaults = defaults

    def row_id(self, fields: dict[str, Any], number: int, where: str) -> RowId:
        """The row's own id, or its number when it has none. A batch row's custom_id comes first:
        by that its sender looks for the answer."""
        names: Sequence[str] = ID_FIELDS
        if self._prompt_column is None and is_batch_row(fields):
            names = sorted(ID_FIELDS, key=lambda name: name != "custom_id")
        for name in names:
            value = fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (str, int)):
                raise RowError(
                    f"{where}: {name} is {_kind(value)}, not text or a whole number.",
                    f'Give a {name} such as "HumanEval/0" or 7, or leave it out.',
                )
            if value == "":
                raise RowError(f"{where}: {name} is empty.", f"Give a {name}, or leave it out.")
            if isinstance(value, str):
                _check_text(value, name, where)
            return value
        return number

    def read(
        self,
        fields: dict[str, Any],
        row_id: RowId,
        number: int,
        line: int,
        source: str,
        where: str,
        whole_file: bool = False,
    ) -> PromptRow:
        """Check a row and make it a PromptRow; a RowError names the first thing that is wrong."""
        original, body = fields, None
        column = None if whole_file else self._prompt_column
        if column is not None:
            fields = _take_column(fields, column, where)
        elif is_batch_row(fields):
            body = fields["body"]
            fields = flatten_batch_row(fields, where)
        prompt = _prompt_fields(fields, where)
        overrides = self._overrides(fields, where)
        kept = self._kept(original, body, where) if self._keep else {}
        return PromptRow(
            row_id=row_id,
            number=number,
            line=line,
            source=source,
            overrides=overrides,
            keep=kept,
            batch_body=body,
            **prompt,
        )

    def _overrides(self, fields: dict[str, Any], where: str) -> dict[str, Any]:
        overrides: dict[str, Any] = {}
        for name in SAMPLING_FIELDS:
            value = fields.get(name)
            if value is None or (isinstance(value, float) and math.isnan(value)):
                continue  # NaN is how a table says that a cell is missing
            if name == "stop":
                value = _stop_tuple(value, where)
            elif name in INTEGER_FIELDS and isinstance(value, float) and value.is_integer():
                value = int(value)  # JSON makes no difference between 64 and 64.0
            overrides[name] = value
        if fields.get("logprobs") is not None:  # set by flatten_batch_row alone
            overrides["logprobs"] = fields["logprobs"]
        if overrides:
            self._check_overrides(overrides, where)
        return overrides

    def _check_overrides(self, overrides: dict[str, Any], where: str) -> None:
        base = self._defaults or SamplingParams()
        settings = overrides
        if self._defaults is None and "temperature" not in overrides:
            settings = {**overrides, "temperature": 1.0}  # n > 1 is right or wrong with the flags
        try:
            dataclasses.replace(base, **settings)
        except SantagenError as error:
            raise RowError(f"{where}: {error.message}", error.hint) from None

    def _kept(
        self, fields: dict[str, Any], body: dict[str, Any] | None, where: str
    ) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name in self._keep:
            if name in fields:
                kept[name] = fields[name]
            elif body is not None and name in body:
                kept[name] = body[name]
        try:
            json.dumps(kept, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except (TypeError, ValueError) as error:
            raise RowError(
                f"{where}: a field of --keep ({', '.join(kept)}) can't become JSON: {error}.",
                "Leave it out of --keep, or make it text.",
            ) from None
        return kept


def _take_column(fields: dict[str, Any], column: str, where: str) -> dict[str, Any]:
    """Use field `column` as the prompt; what else could be one is then ordinary data."""
    if fields.get(column) is None:
        if column in fields:
            raise RowError(
                f"{where}: {column!r}, which the prompt is to be taken from, is null.",
                "Give it some text, or name another field with --prompt-column.",
            )
        raise RowError(
            f"{where}: the row has no {column!r} to take its prompt from; its fields are "
            f"{_names(fields)}.",
            "Name one of them with --prompt-column.",
        )
    rest = {name: value for name, value in fields.items() if name not in PROMPT_FIELDS}
    return {**rest, "prompt": fields[column]}


def _prompt_fields(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The one way in which the row says its prompt, as PromptRow's arguments."""
    given = [name for name in PROMPT_FIELDS if fields.get(name) is not None]
    if not given:
        empty = [name for name in PROMPT_FIELDS if name in fields]
        if empty:
            null = "is null" if len(empty) == 1 else "are null"
            raise RowError(
                f"{where}: the row has no prompt: {' and '.join(empty)} {null}.", PROMPT_HINT
            )
        raise RowError(
            f"{where}: the row has no prompt; its fields are {_names(fields)}.", PROMPT_HINT
        )
    if given == ["prompt_token_ids"]:
        return {"prompt_token_ids": _token_ids(fields["prompt_token_ids"], where)}
    if given not in (["prompt"], ["prefix", "suffix"]):
        if len(given) == 1:
            other = "suffix" if given == ["prefix"] else "prefix"
            raise RowError(
                f"{where}: the row has a {given[0]} but no {other}.",
                f'Infilling needs both; give the {other} too ("" if there is none), '
                "or call the text prompt to have it continued.",
            )
        hint = (
            "Rename prompt to prefix for infilling."
            if given == ["prompt", "suffix"]
            else "Keep one way: a prompt, a prefix with a suffix, or prompt_token_ids."
        )
        raise RowError(f"{where}: the row has {' and '.join(given)} together.", hint)
    texts = {name: fields[name] for name in given}
    for name, text in texts.items():
        if not isinstance(text, str):
            hint = (
                "Token ids go in prompt_token_ids."
                if isinstance(text, list)
                else f"Quote the {name}."
            )
            raise RowError(f"{where}: {name} is {_kind(text)}, not text.", hint)
        _check_text(text, name, where)
    if not any(texts.values()):
        what = "prompt is" if given == ["prompt"] else "prefix and the suffix are both"
        raise RowError(f"{where}: the {what} empty.", "Give the model some text to start from.")
    return texts


def _token_ids(value: Any, where: str) -> tuple[int, ...]:
    hint = "Give a list of whole numbers from 0, as in [563, 942, 62]."
    if not isinstance(value, list):
        raise RowError(f"{where}: prompt_token_ids is {_kind(value)}, not a list of ids.", hint)
    if not value:
        raise RowError(f"{where}: prompt_token_ids is empty.", hint)
    for at, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int):
            raise RowError(f"{where}: prompt_token_ids[{at}] is {_kind(token)}, not an id.", hint)
        if token < 0:
            raise RowError(f"{where}: prompt_token_ids[{at}] is {token}, below 0.", hint)
    return tuple(value)


def _stop_tuple(value: Any, where: str) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, (list, tuple)):
        raise RowError(
            f"{where}: stop is {_kind(value)}, not text or a list of texts.",
            'Write it as "\\n\\n" or ["\\ndef", "\\nclass"].',
        )
    for stop in stops:
        if not isinstance(stop, str) or stop == "":
            raise RowError(
                f"{where}: stop holds {_kind(stop) if stop != '' else 'an empty text'}.",
                "Every stop is a text of at least one character.",
            )
        _check_text(stop, "stop", where)
    return tuple(dict.fromkeys(stops))


def _check_text(text: str, name: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowError(
            f"{where}: {name} holds half a surrogate pair (\\u{ord(text[error.start]):04x}) at "
            f"character {error.start}, which is no text.",
            "Write the character whole, or as U+FFFD where it is lost.",
        ) from None


def _kind(value: Any) -> str:
    """How messages call a JSON value."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return f"the number {value!r:.40}" if not isinstance(value, int) else "a whole number"
    names: dict[type, str] = {str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")


def _names(fields: dict[str, Any]) -> str:
    names = [str(name)[:40] for name in fields]
    shown = ", ".join(names[:12]) or "none"
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown

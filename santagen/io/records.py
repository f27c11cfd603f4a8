"""The output's lines: a JSON object per sample, or per row in OpenAI's batch form. No files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from santagen.request import Request, RowFailure, SampleOutput

# What a terminal would obey, line ends of other readers, what turns the direction of text, and what
# has no UTF-8 form: legal in JSON, safe only when escaped. (json escapes those below U+0020.)
_FRAGILE = re.compile("[\u007f-\u009f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def json_line(record: dict[str, Any]) -> bytes:
    """One line, UTF-8, ended by LF."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return (escaped(text) + "\n").encode()


def escaped(text: str) -> str:
    """The same JSON, with no character in it that a terminal obeys or that has no UTF-8 form."""
    return _FRAGILE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def sample_record(sample: SampleOutput, *, echo: bool, token_ids: bool) -> dict[str, Any]:
    """The record of one sample."""
    request = sample.request
    record: dict[str, Any] = {
        "task_id": request.row_id,
        "index": sample.index,
        "completion": sample.completion,
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
        "usage": _usage(request, [sample]),
    }
    if echo:
        record["prompt"] = request.prompt_text
    if token_ids or sample.completion is None:
        record["token_ids"] = list(sample.token_ids)
    if sample.logprobs is not None:
        record["logprobs"] = _logprobs(sample)
    if request.truncated_tokens:
        record["truncated_tokens"] = request.truncated_tokens
    if sample.trimmed_overlap:
        record["trimmed_overlap"] = sample.trimmed_overlap
    return _with_kept(record, request)


def failure_record(failure: RowFailure) -> dict[str, Any]:
    """The record of a row that failed."""
    return {
        "task_id": failure.row_id,
        "line": failure.line,
        "error": failure.error,
        "hint": failure.hint,
    }


def batch_record(
    samples: Sequence[SampleOutput], model: str, *, echo: bool = False, token_ids: bool = False
) -> dict[str, Any]:
    """All samples of a row as one response of OpenAI's batch API; the clock has no part in it.

    Beyond OpenAI's fields the body has `prompt` and `truncated_tokens`, a choice `token_ids`, and
    the line the row's kept fields.
    """
    request = samples[0].request
    choices = []
    for sample in samples:
        choice: dict[str, Any] = {
            "index": sample.index,
            "text": sample.completion,
            "finish_reason": sample.finish_reason,
            "stop_reason": sample.stop_reason,
            "logprobs": _logprobs(sample) if sample.logprobs is not None else None,
        }
        if token_ids or sample.completion is None:
            choice["token_ids"] = list(sample.token_ids)
        if sample.trimmed_overlap:
            choice["trimmed_overlap"] = sample.trimmed_overlap
        choices.append(choice)
    name = f"cmpl-{request.row_id}"
    body: dict[str, Any] = {
        "id": name,
        "object": "text_completion",
        "created": 0,
        "model": model,
        "choices": choices,
        "usage": _usage(request, samples),
    }
    if echo:
        body["prompt"] = request.prompt_text
    if request.truncated_tokens:
        body["truncated_tokens"] = request.truncated_tokens
    response = {"status_code": 200, "request_id": name, "body": body}
    line = {"id": name, "custom_id": str(request.row_id), "response": response, "error": None}
    return _with_kept(line, request)


def batch_failure_record(failure: RowFailure) -> dict[str, Any]:
    """The same in OpenAI's batch form."""
    message = f"{failure.error} {failure.hint}".strip()
    return {
        "id": f"cmpl-{failure.row_id}",
        "custom_id": str(failure.row_id),
        "response": None,
        "error": {"code": "invalid_row", "message": message, "line": failure.line},
    }


def _with_kept(record: dict[str, Any], request: Request) -> dict[str, Any]:
    """Kept fields follow the standard ones and never replace them."""
    return record | {name: v for name, v in request.keep.items() if name not in record}


def _usage(request: Request, samples: Sequence[SampleOutput]) -> dict[str, int]:
    return {
        "prompt_tokens": len(request.prompt_token_ids),
        "completion_tokens": sum(sample.generated_tokens for sample in samples),
    }


def _logprobs(sample: SampleOutput) -> list[dict[str, Any]]:
    return [
        {
            "id": token.token_id,
            "logprob": _number(token.logprob),
            "top": [[number, _number(value)] for number, value in token.top],
        }
        for token in sample.logprobs or ()
    ]


def _number(logprob: float) -> float | None:
    """JSON has no infinity: what can't be drawn at all is null."""
    return round(logprob, 6) if math.isfinite(logprob) else None

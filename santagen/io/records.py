"""The output's lines: a JSON object per sample, or per row in OpenAI's batch form. No files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from santagen.request import Request, RowFailure, SampleOutput

# Controls that a terminal would obey, line ends of other readers, and what has no UTF-8 form: legal
# in JSON, safe only when escaped. (json escapes those below U+0020 itself.)
_FRAGILE = re.compile("[\u007f-\u009f\u2028\u2029\ud800-\udfff]")


def json_line(record: dict[str, Any]) -> bytes:
    """One line, UTF-8, ended by LF."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return (_FRAGILE.sub(lambda m: f"\\u{ord(m[0]):04x}", text) + "\n").encode()


def sample_record(sample: SampleOutput, *, echo: bool, token_ids: bool) -> dict[str, Any]:
    """The record of one sample; kept fields follow the standard ones and never replace them."""
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
    for name, value in request.keep.items():
        record.setdefault(name, value)
    return record


def failure_record(failure: RowFailure) -> dict[str, Any]:
    """The record of a row that failed."""
    return {
        "task_id": failure.row_id,
        "line": failure.line,
        "error": failure.error,
        "hint": failure.hint,
    }


def batch_record(samples: Sequence[SampleOutput], model: str) -> dict[str, Any]:
    """All samples of a row as one response of OpenAI's batch API; the clock has no part in it."""
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
        if sample.completion is None:
            choice["token_ids"] = list(sample.token_ids)
        if sample.trimmed_overlap:
            choice["trimmed_overlap"] = sample.trimmed_overlap
        choices.append(choice)
    name = f"cmpl-{request.row_id}"
    body = {
        "id": name,
        "object": "text_completion",
        "created": 0,
        "model": model,
        "choices": choices,
        "usage": _usage(request, samples),
    }
    response = {"status_code": 200, "request_id": name, "body": body}
    return {"id": name, "custom_id": str(request.row_id), "response": response, "error": None}


def batch_failure_record(failure: RowFailure) -> dict[str, Any]:
    """The same in OpenAI's batch form."""
    message = f"{failure.error} {failure.hint}".strip()
    return {
        "id": f"cmpl-{failure.row_id}",
        "custom_id": str(failure.row_id),
        "response": None,
        "error": {"code": "invalid_row", "message": message, "line": failure.line},
    }


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

"""Rows of OpenAI's batch files: {"custom_id", "method", "url", "body": {...}} as an ordinary row.

Completions only: a chat has no meaning for these models and is refused, as is a setting that would
change the answer and can't be honoured. What has no effect offline (model, stream, user) is
ignored.
"""

from __future__ import annotations

from typing import Any

from santagen.errors import RowError
from santagen.io.row_fields import PROMPT_FIELDS, SAMPLING_FIELDS

UNSUPPORTED = {
    "frequency_penalty": "Leave it out; repetition_penalty is the penalty there is.",
    "presence_penalty": "Leave it out; repetition_penalty is the penalty there is.",
    "logit_bias": "Leave it out.",
    "echo": "Leave it out, and join prompt and answer afterwards.",
}


def is_batch_row(fields: dict[str, Any]) -> bool:
    """Whether the prompt is in `body`; a row with a prompt of its own may have any body."""
    return "body" in fields and all(fields.get(name) is None for name in PROMPT_FIELDS)


def flatten_batch_row(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of an ordinary row (and `logprobs`) that say the same as the body."""
    body = fields["body"]
    if not isinstance(body, dict) or not body:
        raise RowError(
            f"{where}: the body of this batch row is empty or no object.",
            'Give it a body such as {"prompt": "def f(", "max_tokens": 64}.',
        )
    if body.get("messages") is not None:
        raise RowError(
            f"{where}: the body holds chat messages, which a completion model can't answer.",
            'Send the text to continue as "prompt", to /v1/completions.',
        )
    for name, hint in UNSUPPORTED.items():
        if body.get(name):
            raise RowError(f"{where}: the body sets {name}, which is not available here.", hint)
    if body.get("best_of") not in (None, 1, body.get("n")):
        raise RowError(
            f"{where}: the body sets best_of, which santagen does not have.",
            "Ask for n samples and choose among them.",
        )
    known = (*PROMPT_FIELDS, *SAMPLING_FIELDS)
    row = {name: body[name] for name in known if body.get(name) is not None}
    if "max_tokens" not in row and body.get("max_completion_tokens") is not None:
        row["max_tokens"] = body["max_completion_tokens"]
    if isinstance(row.get("prompt"), list):
        row.update(_list_prompt(row.pop("prompt"), where))
    if isinstance(row.get("prompt"), str) and "suffix" in row:  # how OpenAI writes infilling
        row["prefix"] = row.pop("prompt")
    logprobs = _logprobs(body, where)
    if logprobs is not None:
        row["logprobs"] = logprobs
    return row


def _list_prompt(prompt: list[Any], where: str) -> dict[str, Any]:
    """OpenAI's prompt may be [text], [id, id, ...] or [[id, id, ...]]; more than one is refused."""
    if not prompt:
        return {"prompt": ""}
    if isinstance(prompt[0], int):
        return {"prompt_token_ids": prompt}
    if len(prompt) > 1:
        raise RowError(
            f"{where}: the body holds {len(prompt)} prompts.",
            "Write one row, with a custom_id of its own, for each.",
        )
    return {"prompt_token_ids": prompt[0]} if isinstance(prompt[0], list) else {"prompt": prompt[0]}


def _logprobs(body: dict[str, Any], where: str) -> int | None:
    """A completion asks for logprobs: N; a chat for logprobs: true with top_logprobs: N."""
    value = body.get("logprobs")
    if value is None or value is False:
        return None
    if value is True:
        value = body.get("top_logprobs") or 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise RowError(f"{where}: logprobs is not a whole number.", "Ask for logprobs such as 5.")
    return value

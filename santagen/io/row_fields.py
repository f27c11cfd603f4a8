"""The fields of a row that mean something: its id, its prompt, settings of its own. Names only."""

from __future__ import annotations

ID_FIELDS = ("task_id", "id", "custom_id")
PROMPT_FIELDS = ("prompt", "prefix", "suffix", "prompt_token_ids")
INTEGER_FIELDS = ("max_tokens", "top_k", "n", "seed")
SAMPLING_FIELDS = (
    *INTEGER_FIELDS, "temperature", "top_p", "min_p", "repetition_penalty", "stop", "trim_overlap",
)  # fmt: skip
BATCH_FIELDS = ("custom_id", "method", "url", "body")  # of OpenAI's batch rows; body has the others

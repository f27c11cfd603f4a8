"""What an infilled text repeats of its suffix: cut only where asked, in text and ids, and kept."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from santagen import LLM, SampleOutput, SamplingParams
from santagen.engine.batch import Features, Step
from santagen.engine.output_processor import OutputProcessor
from santagen.engine.sequence import Sequence
from santagen.io.records import batch_record, sample_record
from santagen.request import Request

PREFIX = "def area(w, h):\n    return "
PARAMS = SamplingParams(max_tokens=8)
TRIM = dataclasses.replace(PARAMS, trim_overlap=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(device="cpu")


def infill(llm: LLM, suffix: str, params: SamplingParams, prefix: str = PREFIX) -> SampleOutput:
    return llm.generate([(prefix, suffix)], params)[0]


def record(sample: SampleOutput) -> dict[str, Any]:
    return sample_record(sample, echo=False, token_ids=True)


def test_what_repeats_the_suffix_is_cut_and_kept(llm: LLM) -> None:
    raw, cut = infill(llm, " * h\n", PARAMS), infill(llm, " * h\n", TRIM)
    assert (raw.completion, raw.trimmed_overlap) == ("w * h", "")
    assert (cut.completion, cut.trimmed_overlap) == ("w", " * h")
    assert llm.tokenizer is not None and llm.tokenizer.decode(cut.token_ids) == "w"
    assert cut.generated_tokens == raw.generated_tokens
    assert (cut.finish_reason, cut.stop_reason) == (raw.finish_reason, raw.stop_reason)
    assert record(cut)["trimmed_overlap"] == " * h"
    assert "trimmed_overlap" not in record(raw)
    assert batch_record([cut], "m")["response"]["body"]["choices"][0]["trimmed_overlap"] == " * h"


def test_a_cut_inside_a_token_keeps_the_token_that_reaches_over_it(llm: LLM) -> None:
    assert llm.tokenizer is not None
    drawn = [*llm.tokenizer.encode("w *"), *llm.tokenizer.encode(" h")]
    assert [llm.tokenizer.decode([token]) for token in drawn] == ["w", " *", " h"]
    sequence = Sequence(Request(0, 0, (1,), TRIM, suffix="* h\n"), 0, (0, 0), 3)
    processor = OutputProcessor(llm.tokenizer, (), ())
    ended = []
    for number, token in enumerate(drawn):
        step = Step(1, [sequence], np.array([number == 2]), Features(), number)
        ended += processor.process(step, np.array([token]), None, None, None)
    (cut,) = map(processor.output, ended)
    assert (cut.completion, cut.trimmed_overlap) == ("w ", "* h")
    assert list(cut.token_ids) == drawn[:2]


def test_a_stop_string_is_cut_first(llm: LLM) -> None:
    stops = dataclasses.replace(TRIM, stop=(" h",))
    cut = infill(llm, " * h\n", stops)
    assert (cut.completion, cut.trimmed_overlap, cut.stop_reason) == ("w", " *", " h")
    shown = infill(llm, " * h\n", dataclasses.replace(stops, include_stop=True))
    assert (shown.completion, shown.trimmed_overlap) == ("w", " * h")


def test_rows_without_a_suffix_lose_nothing(llm: LLM) -> None:
    prompts: list[str | tuple[str, str]] = [PREFIX, (PREFIX, "")]
    whole = [sample.completion for sample in llm.generate(prompts, PARAMS)]
    trimmed = llm.generate(prompts, TRIM)
    assert [sample.completion for sample in trimmed] == whole
    assert all(sample.trimmed_overlap == "" for sample in trimmed)

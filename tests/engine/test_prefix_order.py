"""Rows that share a prefix but stand far apart: computed together, and no byte or order changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from santagen import LLM, SamplingParams
from santagen.engine import request_feed
from santagen.engine.batch import Step
from santagen.engine.block_manager import prefix_order
from santagen.engine.model_runner import Record
from santagen.request import Request, RowFailure, SampleOutput
from tests.cli.helpers import Cli, read_jsonl, write_jsonl

Prompts = list[tuple[int, ...]]
PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=9).map(tuple), max_size=12)
HEADERS = 8
HEADER_TOKENS = 64
BLOCK = 16
PARAMS = SamplingParams(max_tokens=3, ignore_eos=True)


@given(PROMPTS, st.integers(1, 4))
def test_families_stand_together_at_every_depth(prompts: Prompts, size: int) -> None:
    order = prefix_order(prompts, size)
    assert sorted(order) == list(range(len(prompts)))
    for blocks in range(1, 9):
        length = blocks * size
        heads = [prompts[at][:length] for at in order if len(prompts[at]) >= length]
        runs = [head for at, head in enumerate(heads) if at == 0 or heads[at - 1] != head]
        assert len(runs) == len(set(runs))


@given(PROMPTS, st.integers(1, 4))
def test_families_stand_where_their_first_member_did(prompts: Prompts, size: int) -> None:
    order = prefix_order(prompts, size)
    families = [prompts[at][:size] if len(prompts[at]) >= size else at for at in order]
    first = list(dict.fromkeys(families))
    keys = [tokens[:size] if len(tokens) >= size else at for at, tokens in enumerate(prompts)]
    assert first == list(dict.fromkeys(keys))


@given(st.permutations(range(12)), st.integers(1, 4))
def test_what_shares_nothing_keeps_its_order(firsts: list[int], size: int) -> None:
    prompts = [(first, *range(20, 26)) for first in firsts]
    assert prefix_order(prompts, size) == list(range(12))


def rows(number: int) -> list[Request]:
    """Every eighth row has the same first 64 tokens."""
    headers = [tuple(range(400 * k, 400 * k + HEADER_TOKENS)) for k in range(HEADERS)]
    return [Request(i, i, (*headers[i % HEADERS], i, 9), PARAMS) for i in range(number)]


def small_cache() -> LLM:
    """Holds two of the eight headers beside the four rows that run."""
    return LLM(device="cpu", max_num_seqs=4, num_blocks=1 + 4 * 5 + 8, block_size=BLOCK)


def test_headers_far_apart_are_computed_once_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens_of(llm: LLM) -> dict[int, tuple[int, ...]]:
        outputs = list(llm.run(iter(rows(10 * HEADERS))))
        assert all(isinstance(output, SampleOutput) for output in outputs)
        return {o.request.number: o.token_ids for o in outputs if isinstance(o, SampleOutput)}

    grouped = small_cache()
    found = tokens_of(grouped)
    plain = small_cache()
    monkeypatch.setattr(request_feed, "prefix_order", lambda prompts, size: range(len(prompts)))
    assert tokens_of(plain) == found
    assert len(found) == 10 * HEADERS
    # A window holds what was drawn since the last one: 32 rows a launch, three windows in all.
    once = HEADERS * HEADER_TOKENS
    counts = grouped.engine.scheduler.counts
    assert counts.prefill_tokens <= 3 * once + 10 * HEADERS * 2
    assert plain.engine.scheduler.counts.prefill_tokens > 6 * once


def test_no_more_is_drawn_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0

    def requests() -> Iterator[Request | RowFailure]:
        nonlocal taken
        for request in rows(120):
            taken += 1
            yield request

    llm = small_cache()
    llm.engine.window = 50
    ended = 0
    for _ in llm.run(requests()):
        if not ended:
            assert taken <= 4 + 50  # the first launch waited for four
        ended += 1
        assert taken <= ended + 4 + 50
    assert ended == 120
    monkeypatch.setattr(request_feed, "DRAWN_TOKENS", 3 * (HEADER_TOKENS + 2))
    taken = 0
    next(iter(small_cache().run(requests())))
    assert taken <= 4 + 2 * 3 + 4


def test_the_first_launch_waits_for_what_it_can_use() -> None:
    taken = 0

    def requests() -> Iterator[Request | RowFailure]:
        nonlocal taken
        for request in rows(100):
            taken += 1
            yield request

    llm = small_cache()
    llm.engine.run_ahead = 0
    launches: list[int] = []
    launch = llm.engine.runner.launch

    def count(step: Step) -> Record:
        launches.append(taken)
        return launch(step)

    llm.engine.runner.launch = count  # type: ignore[method-assign]
    list(llm.run(requests()))
    assert launches[0] == 4 and taken == 100


def test_output_order_and_bytes_are_those_of_the_input(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(capfd)
    headers = [f"# File {n} of a project\n" * 40 for n in range(3)]
    given = [{"prompt": headers[i % 3] + f"x{i} = "} for i in range(12)]
    path = write_jsonl(tmp_path / "p.jsonl", given)
    settings = ("--max-tokens", "4", "--max-num-seqs", "3")
    out = tmp_path / "out.jsonl"
    assert cli.generate(path, "-o", out, *settings).code == 0
    assert [row["task_id"] for row in read_jsonl(out)] == list(range(12))
    monkeypatch.setattr(request_feed, "prefix_order", lambda prompts, size: range(len(prompts)))
    plain = tmp_path / "plain.jsonl"
    assert cli.generate(path, "-o", plain, *settings).code == 0
    assert plain.read_bytes() == out.read_bytes()

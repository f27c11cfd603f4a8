"""The torch sampler against the definition, one entry at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from santagen.kernels.sampling import apply_repetition_penalty, mark_seen, sample, sample_reference
from tests.kernels.oracle import scores, token
from tests.kernels.sampling_cases import CASES, SETTINGS, make_case


def row_scores(arguments: tuple[torch.Tensor, ...], allowed: Any, row: int) -> dict[int, float]:
    logits, position, key, temperature, top_k, top_p, min_p = (a[row] for a in arguments)
    return scores(
        logits.numpy(), int(position), (int(key[0]), int(key[1])), float(temperature), int(top_k),
        float(top_p), float(min_p), None if allowed is None else allowed.numpy(),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_draws_what_the_definition_says(case: dict[str, Any]) -> None:
    arguments, keywords = make_case(**case)
    tokens = sample_reference(*arguments, **keywords)
    wanted = [token(row_scores(arguments, keywords["allowed"], row)) for row in range(len(tokens))]
    assert tokens.tolist() == wanted


def test_a_row_is_drawn_alone_as_in_company() -> None:
    arguments, keywords = make_case(1001, 8, masked=True, rows=28)
    together = sample_reference(*arguments, **keywords)
    for row in range(28):
        alone = sample_reference(*(a[row : row + 1] for a in arguments), **keywords)
        assert alone.tolist() == [together[row]]
    backwards = sample_reference(*(a.flip(0) for a in arguments), **keywords)
    assert torch.equal(backwards.flip(0), together)


def test_promises_change_nothing() -> None:
    arguments, _ = make_case(500, 9)
    logits, position, key, temperature, top_k, top_p, min_p = arguments
    plain = (logits, position, key, temperature, top_k * 0, top_p * 0 + 1, min_p * 0)
    off = {"any_top_k": False, "any_top_p": False, "any_min_p": False}
    assert torch.equal(sample_reference(*plain, **off), sample_reference(*plain))
    assert torch.equal(sample_reference(*arguments, **off), sample_reference(*plain))
    greedy = sample_reference(*arguments, any_random=False)
    assert torch.equal(greedy, logits.argmax(dim=-1))


def test_greedy_ties_go_to_the_smaller_id() -> None:
    arguments, _ = make_case(64, 10, spread=0.0)
    logits, *rest = arguments
    logits[:, [9, 40, 63]] = 1.0
    assert sample_reference(logits, *rest)[0] == 9


def test_the_entry_that_crosses_top_p_is_kept() -> None:
    # Masses 0.5, 0.25, 0.25: top_p 0.5 keeps one entry, anything more a second and then a third.
    logits = torch.tensor([[0.0, -np.log(2), -np.log(2)]], dtype=torch.float32)
    drawn: dict[float, set[int]] = {}
    for top_p in (0.4999, 0.5, 0.51, 0.75, 0.76):
        rows = 200
        drawn[top_p] = set(
            sample_reference(
                logits.expand(rows, 3), torch.arange(rows), torch.tensor([[1, 2]]).expand(rows, 2),
                torch.ones(rows), torch.zeros(rows, dtype=torch.int32), torch.full((rows,), top_p),
                torch.zeros(rows),
            ).tolist()
        )
    # exp(-ln 2) may round a hair above or below a half, so the boundary itself is not asserted
    assert drawn[0.4999] == {0}
    assert drawn[0.51] == {0, 1} and drawn[0.76] == {0, 1, 2}
    assert drawn[0.75] <= {0, 1, 2} and {0, 1} <= drawn[0.75]


def test_frequencies_follow_the_distribution() -> None:
    rows, temperature = 20000, 0.7
    logits = torch.tensor([[1.0, 0.0, -1.0, 0.5, -2.0]])
    tokens = sample_reference(
        logits.expand(rows, 5), torch.arange(rows), torch.tensor([[5, 6]]).expand(rows, 2),
        torch.full((rows,), temperature), torch.full((rows,), 4, dtype=torch.int32),
        torch.ones(rows), torch.zeros(rows),
    )
    wanted = torch.softmax(logits[0, :4] / temperature, dim=-1)
    seen = torch.bincount(tokens, minlength=5)
    assert seen[4] == 0
    assert ((seen[:4] / rows - wanted).abs() < 0.015).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_draw_minus_one(bad: float) -> None:
    arguments, keywords = make_case(300, 11, masked=True)
    logits = arguments[0]
    allowed = keywords["allowed"]
    clean = sample_reference(*arguments, **keywords)
    own = int(allowed.nonzero()[3])
    logits[::2, own] = bad
    logits[1::2, int((~allowed).nonzero()[0])] = bad  # nobody's id: no harm
    logits[1::2, int(allowed.nonzero()[5])] = -torch.inf
    tokens = sample_reference(*arguments, **keywords)
    assert (tokens[::2] == -1).all() and (tokens[1::2] >= 0).all()
    assert (clean >= 0).all()
    assert (sample_reference(torch.full((14, 9), -torch.inf), *arguments[1:]) == -1).all()


def test_few_allowed_ids_and_wide_filters() -> None:
    arguments, _ = make_case(600, 12)
    allowed = torch.zeros(600, dtype=torch.bool)
    allowed[[5, 77, 599]] = True
    tokens = sample_reference(*arguments, allowed=allowed)
    wanted = [token(row_scores(arguments, allowed, row)) for row in range(len(SETTINGS))]
    assert tokens.tolist() == wanted


def test_the_cpu_takes_the_torch_form_and_strided_logits() -> None:
    arguments, keywords = make_case(100, 13)
    wide = torch.full((len(SETTINGS), 128), 99.0)
    wide[:, :100] = arguments[0]
    tokens = sample(wide[:, :100], *arguments[1:], **keywords)
    assert torch.equal(tokens, sample_reference(*arguments, **keywords))
    assert tokens.dtype == torch.int64


def test_repetition_penalty_and_seen_bits() -> None:
    vocab_size = 70
    seen = torch.zeros(4, 3, dtype=torch.int32)
    mark_seen(seen, torch.tensor([2, 0]), torch.tensor([31, 64]))
    mark_seen(seen, torch.tensor([2, 0]), torch.tensor([33, 64]))
    bits = {row: [v for v in range(96) if seen[row, v // 32] >> (v % 32) & 1] for row in range(4)}
    assert bits == {0: [64], 1: [], 2: [31, 33], 3: []}
    logits = torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(2))
    logits[2, 31], logits[2, 33], logits[0, 64] = 1.5, -1.5, 0.0
    penalty = torch.tensor([1.2, 1.2, 2.0, 1.0])
    wanted = logits.clone()
    wanted[2, 31], wanted[2, 33] = 0.75, -3.0
    assert torch.equal(apply_repetition_penalty(logits, seen, penalty), wanted)
    assert float(logits[2, 31]) == 1.5

"""The sampler's Triton kernels against the torch form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from santagen.kernels.sampling import apply_repetition_penalty_reference, sample_reference
from tests.kernels.sampling_cases import CASES, SETTINGS, make_case

pytest.importorskip("triton")

from santagen.kernels.penalty_triton import penalise
from santagen.kernels.sampling_triton import sample_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("case", "splits"), [*((case, 0) for case in CASES), (CASES[4], 1), (CASES[5], 2)], ids=str
)
def test_it_draws_the_same_tokens(case: dict[str, Any], splits: int) -> None:
    arguments, keywords = make_case(**case, device=DEVICE)
    tokens = sample_triton(*arguments, **keywords, splits=splits)
    assert tokens.tolist() == sample_reference(*arguments, **keywords).tolist()


@pytest.mark.parametrize("splits", [0, 2])
def test_rows_that_are_not_finite_and_strided_views(splits: int) -> None:
    arguments, keywords = make_case(1100, 11, masked=True, device=DEVICE)
    allowed = keywords["allowed"]
    table = torch.full((len(SETTINGS), 1200), 60.0, device=DEVICE)
    logits = table[:, :1100]
    logits.copy_(arguments[0])
    logits[1, int(allowed.nonzero()[3])] = torch.nan
    logits[2, int(allowed.nonzero()[-1])] = torch.inf
    logits[0, 0] = torch.nan
    logits[3] = -torch.inf
    logits[4:, int((~allowed).nonzero()[0])] = torch.nan
    logits[4:, int(allowed.nonzero()[5])] = -torch.inf
    columns = torch.stack([arguments[i] for i in (3, 5, 6)], dim=1)
    temperature, top_p, min_p = columns.unbind(1)
    key = torch.cat([arguments[2].to(torch.int32)] * 2, dim=1)[:, 1:3].flip(1)[:, :2]
    views = (logits, arguments[1].to(torch.int32), key, temperature, arguments[4], top_p, min_p)
    tokens = sample_triton(*views, **keywords, splits=splits)
    assert tokens.tolist() == sample_reference(*views, **keywords).tolist()
    assert (tokens[:4] == -1).all() and (tokens[4:] >= 0).all()


@pytest.mark.parametrize("setting", [1, 2, 5, 7])
def test_what_no_row_uses_can_be_promised(setting: int) -> None:
    arguments, _ = make_case(260, 12, rows=3 * len(SETTINGS), device=DEVICE)
    rows = torch.arange(setting, len(arguments[0]), len(SETTINGS))
    chosen = [argument[rows] for argument in arguments]
    promises = {
        "any_top_k": bool((chosen[4] > 0).any()),
        "any_top_p": bool((chosen[5] < 1).any()),
        "any_min_p": bool((chosen[6] > 0).any()),
    }
    wanted = sample_reference(*chosen).tolist()
    assert sample_triton(*chosen, **promises, splits=0).tolist() == wanted
    greedy = sample_triton(*chosen, any_random=False, splits=0)
    assert torch.equal(greedy, chosen[0].argmax(dim=-1))


def test_few_allowed_ids_and_no_rows() -> None:
    arguments, _ = make_case(130, 13, device=DEVICE)
    allowed = torch.zeros(130, dtype=torch.bool, device=DEVICE)
    allowed[[5, 77, 129]] = True
    tokens = sample_triton(*arguments, allowed=allowed, splits=0)
    assert tokens.tolist() == sample_reference(*arguments, allowed=allowed).tolist()
    assert sample_triton(*(argument[:0] for argument in arguments)).shape == (0,)


def test_the_repetition_penalty() -> None:
    generator = torch.Generator().manual_seed(14)
    table = torch.randn(5, 4200, generator=generator).to(DEVICE)
    seen = torch.randint(-(2**31), 2**31, (5, 132), generator=generator).to(torch.int32).to(DEVICE)
    penalty = torch.tensor([1.3, 1.0, 0.7, 5.0, 1.1], device=DEVICE)
    before = table.clone()
    logits = table[:, :4190]
    wanted = apply_repetition_penalty_reference(logits, seen, penalty)
    assert penalise(logits, seen, penalty) is logits
    assert torch.equal(logits, wanted)
    assert torch.equal(table[:, 4190:], before[:, 4190:])
    assert torch.equal(table[1], before[1]) and not torch.equal(table[0], before[0])

"""The random stream: published Philox vectors, committed keys and noise, no company."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from santagen.kernels.philox import gumbel_all, gumbel_at, gumbel_from_word, philox_4x32
from santagen.random_key import row_key

# Random123's known answers for philox4x32-10: counter, key, output.
ONES = "ffffffff"
KNOWN = [
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (f"{ONES} {ONES} {ONES} {ONES}", f"{ONES} {ONES}", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_philox_gives_the_published_numbers(counter: str, key: str, wanted: str) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in words(counter))
    k0, k1 = (torch.tensor([word]) for word in words(key))
    assert [int(word) for word in philox_4x32((c0, c1, c2, c3), (k0, k1))] == words(wanted)


@pytest.mark.parametrize(
    ("seed", "row_id", "index", "wanted"),
    [
        (0, 0, 0, (0xD65DA0DF, 0x2C7EDA98)),
        (0, "0", 0, (0x0CA5539D, 0xB20E4284)),
        (7, "HumanEval/12", 3, (0xC115E9F5, 0xF4C24665)),
        (2**63 - 1, "é\ud800\U0001f600\"", 199, (0x5EE0D587, 0xB21542A2)),
    ],
)
def test_keys_are_the_committed_ones(
    seed: int, row_id: str | int, index: int, wanted: tuple[int, int]
) -> None:
    assert row_key(seed, row_id, index) == wanted


def test_noise_is_the_committed_one() -> None:
    low, high = row_key(7, "HumanEval/12", 3)
    noise = gumbel_all(torch.tensor([131]), torch.tensor([[low, high]]), 6)
    wanted = [0.18362713, 1.6241354, -1.0109155, 3.7491434, 1.6711186, 0.58151144]
    assert noise[0].tolist() == pytest.approx(wanted, rel=1e-6)


def test_noise_is_finite_and_fine_at_both_ends() -> None:
    ends = gumbel_from_word(torch.tensor([0, 1, 2**31, 2**32 - 2**7, 2**32 - 1]))
    assert torch.isfinite(ends).all()
    exact = [-np.log(-np.log1p(-(x + 0.5) / 2**32)) for x in (0, 1, 2**31)]
    assert ends[:3].tolist() == pytest.approx(exact, rel=3e-7)
    assert ends[-1] == ends[-2] == pytest.approx(-np.log(24 * np.log(2)), rel=1e-6)


def test_noise_does_not_depend_on_company() -> None:
    generator = torch.Generator().manual_seed(1)
    key = torch.randint(0, 2**32, (9, 2), generator=generator)
    position = torch.randint(0, 2048, (9,), generator=generator)
    together = gumbel_all(position, key, 40001)
    ids = torch.tensor([[0, 3, 5, 40000, 32768]])
    for row in (0, 4, 8):
        alone = gumbel_all(position[row : row + 1], key[row : row + 1], 37)
        assert torch.equal(alone[0], together[row, :37])
        chosen = gumbel_at(position[row : row + 1], key[row : row + 1], ids)
        assert torch.equal(chosen, together[row : row + 1].gather(1, ids))


def test_noise_takes_keys_as_signed_words() -> None:
    key = torch.tensor([[2**32 - 5, 2**31 + 9]])
    position = torch.tensor([3])
    signed = gumbel_all(position, key.to(torch.int32), 50)
    assert torch.equal(gumbel_all(position, key, 50), signed)


def test_noise_is_gumbel() -> None:
    noise = gumbel_all(torch.arange(64), torch.tensor([[1, 2]]).expand(64, 2), 4096).double()
    assert float(noise.mean()) == pytest.approx(0.5772157, abs=0.01)
    assert float(noise.var()) == pytest.approx(np.pi**2 / 6, abs=0.02)
    assert float((noise < 0).double().mean()) == pytest.approx(np.exp(-1), abs=0.004)

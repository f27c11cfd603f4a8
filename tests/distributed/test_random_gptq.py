"""The random quantised models that measurements shard are one model at every world size."""

from __future__ import annotations

import pytest

from tests.distributed.processes import together


@pytest.mark.parametrize(("size", "quantization"), [(2, "gptq"), (4, "none")])
def test_shards_of_a_random_gptq_model_equal_it(size: int, quantization: str) -> None:
    first, *others = together(size, "gptq_shards.compare", quantization)
    assert len(first) == 4 and [line for line in first if "WRONG" in line] == []
    assert all(lines == first for lines in others)

"""Inputs that several ranks share out, and what one process makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.helpers import write_jsonl
from tests.distributed.processes import start

SAMPLED = ("-n", "2", "--temperature", "0.9", "--top-p", "0.95", "--max-tokens", "16", "-q")
# Few at a time, so that rows are drawn all through the run.
NARROW = ("--max-num-seqs", "4")


def rows() -> list[dict[str, object]]:
    """Rows of very different lengths; one that can't be used in the middle, and one too long."""
    texts = [f"def f{i}(x):\n    return x + {i}" for i in range(20)]
    made: list[dict[str, object]] = [
        {"id": f"r{i}", "prompt": text, "max_tokens": 40 if i % 5 == 0 else 12}
        for i, text in enumerate(texts)
    ]
    made[7] = {"id": "r7", "prompt": ""}
    made[9] |= {"n": 5, "seed": 3}
    made[11]["prompt"] = "x = 1\n" * 2000
    return made


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", rows())


@pytest.fixture(scope="session")
def single(prompts: Path) -> Path:
    """What one process writes."""
    output = prompts.with_name("single.jsonl")
    ran = start(1, "generate", prompts, "-o", output, *SAMPLED)
    assert ran.wait() == [1], ran.err
    return output


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"

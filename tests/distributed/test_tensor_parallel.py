"""A model on several ranks against itself on one, in every layout, with any vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from santagen.config import ModelConfig
from tests.cli.helpers import read_jsonl
from tests.distributed.conftest import NARROW, SAMPLED
from tests.distributed.processes import start, together
from tests.fixture_writer import GPTQSpec, Spec, write_checkpoint
from tests.model_helpers import SHARED

SPECS = {
    "plain": Spec(),
    "vocab-4099": Spec(config={"vocab_size": 4099, "n_positions": 61}),
    "few-rows": Spec(config={"vocab_size": 5, "n_positions": 33}),  # fewer than two a rank of 4
    "untied": Spec(config={"tie_word_embeddings": False, "vocab_size": 97}),
    "conv1d-split": Spec(conv1d=True, split=True, dtype="F32"),
    "multi-head": Spec(config={"multi_query": False}),
    "gelu-sharded": Spec(config={"activation_function": "gelu"}, shards=3, split=True),
    "gptq-4-act": Spec(gptq=GPTQSpec(4, 32, act_order=True, sym=False, form="v1-word")),
    "gptq-3-act": Spec(gptq=GPTQSpec(3, 32, act_order=True, sym=False)),
    "gptq-2": Spec(gptq=GPTQSpec(2, -1, form="v2"), split=True),
    "gptq-8-act": Spec(gptq=GPTQSpec(8, 16, act_order=True, form="v2"), dtype="F16"),
    "gptq-multi-head": Spec(config={"multi_query": False}, gptq=GPTQSpec(4, 64, g_idx="absent")),
}
FIXTURES = SHARED / "fixtures"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, spec in SPECS.items():
        (folder / name).mkdir()
        write_checkpoint(folder / name, spec)
    return [folder / name for name in SPECS]


def shared_fixtures() -> list[Path]:
    """Those of other tools, where they lie beside this clone."""
    manifest = FIXTURES / "MANIFEST.json"
    entries = json.loads(manifest.read_text()) if manifest.is_file() else []
    return [
        FIXTURES / entry["name"]
        for entry in entries
        if entry.get("has_reference") and entry["expected"] != "refused"
    ]


def divided_by(directory: Path, size: int) -> bool:
    config = ModelConfig.from_directory(directory)
    return config.n_head % size == 0 and config.n_inner % size == 0


@pytest.mark.parametrize("size", [2, 4])
def test_shards_equal_the_whole_model(
    checkpoints: list[Path], bundled_model: Path, size: int
) -> None:
    every = [*checkpoints, *shared_fixtures(), bundled_model]
    tried = [path for path in every if divided_by(path, size)]
    assert len(tried) >= len(SPECS)
    first, *others = together(size, "shards.compare", tried)
    assert [line for line in first if line.startswith("WRONG")] == []
    assert len(first) == len(tried)
    assert all(lines == first for lines in others)  # every rank has the same numbers and tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_and_gathers(dtype: str) -> None:
    every = together(2, "shards.sums", dtype)
    row = [1.0] * 5 + [2.0] * 5
    assert every == [[str([105.0, row, [7, 10], list(range(7)), 10])]] * 2


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_row_s_sum_depends_on_no_other_row(size: int) -> None:
    assert together(size, "shards.rows_summed") == [["True True"]] * size


@pytest.mark.parametrize("size", [2, 5])
def test_rows_are_exchanged(size: int) -> None:
    every = together(size, "shards.rows_exchanged")
    assert every == [[f"True True {list(range(7))}"]] * size


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_draw_a_share_of_the_rows_each(bundled_model: Path, size: int) -> None:
    assert divided_by(bundled_model, size)
    first, *others = together(size, "shards.shared_draws", bundled_model)
    assert len(first) == 2 and first[0] == first[1]
    assert all(lines == first for lines in others)


def test_each_rank_reads_only_its_slices(bundled_model: Path) -> None:
    (whole,), *_ = together(1, "shards.bytes_read", bundled_model)
    (one,), (two,) = together(2, "shards.bytes_read", bundled_model)
    # Beside its half: the K/V head, the norms and the biases of row-parallel layers.
    for share in (int(one), int(two)):
        assert int(whole) / 2 < share < int(whole) * 0.55


def test_key_value_heads_are_cut_where_there_are_many(checkpoints: list[Path]) -> None:
    paths = {path.name: path for path in checkpoints}
    (many,), *_ = together(1, "shards.kv_heads", paths["multi-head"])
    (half,), *_ = together(2, "shards.kv_heads", paths["multi-head"])
    (one,), *_ = together(2, "shards.kv_heads", paths["plain"])
    heads, size = map(int, many.split())
    assert half == f"{heads // 2} {size // 2}"
    assert one == f"1 {size // heads}"


def test_a_run_on_shards_and_groups(prompts: Path, single: Path, output: Path) -> None:
    command = ("generate", prompts, "-o", output, *SAMPLED, *NARROW, "-tp", "2")
    ran = start(4, *command)
    assert ran.wait() == [1, 1, 1, 1], ran.err
    mine, wanted = read_jsonl(output), read_jsonl(single)
    assert [(s["task_id"], s["index"]) for s in mine] == [
        (s["task_id"], s["index"]) for s in wanted
    ]
    same = sum(a == b for a, b in zip(mine, wanted, strict=True))
    assert same >= len(wanted) - 1  # one near-tie of float32 sums is allowed


def test_shards_write_to_standard_output(prompts: Path, single: Path) -> None:
    ran = start(2, "generate", prompts, *SAMPLED, "-tp", "2")
    assert ran.wait() == [1, 1], ran.err
    lines = (ran.folder / "0.out").read_text().splitlines()
    assert len(lines) == len(single.read_text().splitlines())
    assert (ran.folder / "1.out").read_text() == ""

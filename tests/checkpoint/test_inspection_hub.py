"""`inspect` of a hub model tells the same as of its folder, for a small part of the bytes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.fake_hub import COMMIT, FakeHub
from tests.cli.helpers import Ran, process
from tests.fixture_writer import GPTQSpec, Spec, write_checkpoint

SHAPE = {"n_embd": 128, "n_inner": 512, "vocab_size": 512}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def inspect(home: Path, model: str | Path, hub: FakeHub | None = None, **settings: str) -> Ran:
    """In a process of its own: the hub's client reads its environment once."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **settings}
    environment["HF_ENDPOINT"] = hub.url if hub is not None else "http://127.0.0.1:9"
    return process("inspect", model, "--json", "--hf-token", "hf_secret", env=environment)


def facts(ran: Ran) -> dict[str, Any]:
    found = json.loads(ran.out)
    assert "hf_secret" not in ran.out + ran.err
    return {k: v for k, v in found.items() if k not in ("model", "revision")}


@pytest.mark.parametrize(
    "spec",
    [
        Spec(config=SHAPE, conv1d=True, split=True),
        Spec(config=SHAPE, shards=3),
        Spec(config=SHAPE, dtype="F16", gptq=GPTQSpec(act_order=True, sym=False, form="v1-word")),
        Spec(config=SHAPE, dtype="F16", gptq=GPTQSpec(form="v2"), file="gptq-4bit.safetensors"),
    ],
)
def test_the_same_as_of_the_folder_for_few_bytes(
    tmp_path: Path, folder: Path, spec: Spec, bundled_model: Path
) -> None:
    write_checkpoint(folder, spec)
    (folder / "tokenizer.json").write_bytes((bundled_model / "tokenizer.json").read_bytes())
    home = tmp_path / "home"
    with FakeHub(folder) as hub:
        ran = inspect(home, hub.name, hub)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["revision"] == COMMIT
    assert facts(ran) == facts(inspect(home, folder))
    for path in folder.glob("*.safetensors"):
        assert 0 < hub.sent[path.name] < 0.5 * path.stat().st_size
    assert not list(home.rglob("*.safetensors"))


def test_a_long_header_is_fetched_whole(tmp_path: Path, folder: Path) -> None:
    write_checkpoint(folder, Spec(config={"n_layer": 90}))
    with FakeHub(folder) as hub:
        ran = inspect(tmp_path / "home", hub.name, hub)
    assert ran.code == 0 and json.loads(ran.out)["architecture"]["n_layer"] == 90
    assert hub.sent["model.safetensors"] > 100_000


def test_pickled_files_are_downloaded_and_what_is_cached_is_used(
    tmp_path: Path, folder: Path
) -> None:
    write_checkpoint(folder, Spec(file="pytorch_model.bin"))
    home = tmp_path / "home"
    with FakeHub(folder) as hub:
        first = inspect(home, hub.name, hub)
        size = (folder / "pytorch_model.bin").stat().st_size
        assert first.code == 0 and hub.sent["pytorch_model.bin"] == size
        hub.sent.clear()
        assert facts(inspect(home, hub.name, hub)) == facts(first)
        assert "pytorch_model.bin" not in hub.sent
    assert facts(inspect(home, hub.name, HF_HUB_OFFLINE="1")) == facts(first)


def test_faults_are_named(tmp_path: Path, folder: Path) -> None:
    write_checkpoint(folder, Spec(config=SHAPE))
    home = tmp_path / "home"
    with FakeHub(folder, ranges=False) as hub:
        ran = inspect(home, hub.name, hub)
    assert ran.code == 2 and "headers of some/model could not be fetched" in ran.err
    assert "hf_secret" not in ran.err and "Traceback" not in ran.err and "hint: " in ran.err
    ran = inspect(home, "some/other", HF_HUB_OFFLINE="1")
    assert ran.code == 2 and "HF_HUB_OFFLINE is set" in ran.err
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with FakeHub(folder) as hub:
        ran = inspect(home, hub.name, hub)
    assert ran.code == 2 and "model.safetensors is cut short" in ran.err


def test_a_hub_model_that_has_no_weights_is_not_called_uncached(
    tmp_path: Path, folder: Path
) -> None:
    write_checkpoint(folder, Spec())
    (folder / "model.safetensors").unlink()
    with FakeHub(folder) as hub:
        ran = inspect(tmp_path / "home", hub.name, hub)
    assert ran.code == 2 and "holds no weights" in ran.err and "cache" not in ran.err

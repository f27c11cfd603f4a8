"""A model's name leads to a folder, or to one sentence that says why not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from santagen.checkpoint.source import (
    bundled_model,
    model_fingerprint,
    resolve_model,
    resolve_tokenizer,
)
from santagen.errors import SantagenError, without_token
from tests.cli.helpers import Cli, process
from tests.fixture_writer import Spec, write_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = """
import json, sys
from santagen.checkpoint.source import resolve_model
from santagen.errors import SantagenError
try:
    found = resolve_model(sys.argv[1], revision=sys.argv[2] or None, token="hf_secret")
    print(json.dumps([str(found.path), found.revision]))
except SantagenError as error:
    print(json.dumps({"message": error.message, "hint": error.hint}))
"""


def cache_model(home: Path, spec: Spec, name: str = "some/model") -> Path:
    """A hub cache as a download of `name` leaves it; returns the snapshot folder."""
    repo = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    write_checkpoint(snapshot, spec)
    return snapshot


def resolve(home: Path, model: str, revision: str = "", **environment: str) -> list | dict:
    """`resolve_model` in a process of its own: the hub's client reads its environment once."""
    settings = {"HF_HOME": str(home), **environment}
    child = subprocess.run(
        [sys.executable, "-c", RESOLVE, model, revision],
        env={**os.environ, **settings}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "hf_secret" not in child.stdout + child.stderr
    return json.loads(child.stdout)


def test_no_name_is_the_bundled_model() -> None:
    source = resolve_model(None)
    assert source.bundled and source.path == bundled_model()
    assert (source.path / "config.json").is_file()


def test_a_folder_is_itself_whatever_it_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "starcoder ü"
    folder.mkdir()
    source = resolve_model(str(folder))
    assert (source.path, source.bundled, source.revision) == (folder, False, None)


@pytest.mark.parametrize(
    "name",
    [
        "./nothing", "/no/such/folder", "~/no-such-folder", "a/b/c", "../models", "a/..",
        "some\\model", "", " ", "some/mod el", "-m", "some/", "http://host/model",
    ],
)  # fmt: skip
def test_what_is_no_folder_and_no_hub_name(name: str) -> None:
    with pytest.raises(SantagenError, match="no model folder") as caught:
        resolve_model(name)
    assert "hub id" in caught.value.hint


def test_a_file_and_a_needless_revision(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(SantagenError, match="is a file"):
        resolve_model(str(file))
    for model in (None, str(tmp_path)):
        with pytest.raises(SantagenError, match="revision v2"):
            resolve_model(model, revision="v2")


@pytest.mark.parametrize("spec", [Spec(), Spec(shards=2), Spec(file="pytorch_model.bin")])
def test_a_cached_hub_model_needs_no_network(tmp_path: Path, spec: Spec) -> None:
    snapshot = cache_model(tmp_path, spec)
    for revision in ("", "main", COMMIT):
        found = resolve(tmp_path, "some/model", revision, HF_HUB_OFFLINE="1")
        assert found == [str(snapshot), COMMIT]
    # Without the setting the blocked network must lead to the cache too.
    assert resolve(tmp_path, "some/model") == [str(snapshot), COMMIT]


def test_what_is_not_cached_is_named(tmp_path: Path) -> None:
    cache_model(tmp_path, Spec())
    for model, revision, words in (
        ("other/model", "", ["other/model", "HF_HUB_OFFLINE"]),
        ("some/model", "v9", ["some/model", "v9", "HF_HUB_OFFLINE"]),
    ):
        error = resolve(tmp_path, model, revision, HF_HUB_OFFLINE="1")
        assert isinstance(error, dict) and error["hint"]
        assert all(word in error["message"] for word in words), error
    error = resolve(tmp_path, "other/model")
    assert isinstance(error, dict) and "can't be reached" in error["message"]


@pytest.mark.parametrize(
    ("spec", "gone"),
    [
        (Spec(), "model.safetensors"),
        (Spec(), "config.json"),
        (Spec(shards=2), "model-00002-of-00002.safetensors"),
        (Spec(file="pytorch_model.bin"), "pytorch_model.bin"),
    ],
)
def test_a_snapshot_that_is_not_whole_is_not_complete(
    tmp_path: Path, spec: Spec, gone: str
) -> None:
    snapshot = cache_model(tmp_path, spec)
    (snapshot / gone).unlink()
    (snapshot / gone).symlink_to("../../blobs/gone")  # what a cleared cache leaves
    for settings, why in (({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"), ({}, "be reached")):
        error = resolve(tmp_path, "some/model", **settings)
        assert isinstance(error, dict)
        assert "some/model is neither a folder here nor complete in the hub's" in error["message"]
        assert why in error["message"] and str(snapshot) not in error["message"]


COMMANDS = pytest.mark.parametrize("command", ["inspect", "convert", "generate", "bench"])


def words_of(command: str, model: str, folder: Path) -> list[str]:
    (folder / "prompts.txt").write_text("def f")
    return {
        "inspect": [model],
        "convert": [model, str(folder / "out")],
        "generate": ["-m", model, str(folder / "prompts.txt"), "-o", str(folder / "o.jsonl")],
        "bench": ["-m", model],
    }[command]


@COMMANDS
def test_every_command_says_alike_that_a_snapshot_is_not_whole(
    tmp_path: Path, command: str
) -> None:
    (cache_model(tmp_path, Spec()) / "model.safetensors").unlink()
    words = words_of(command, "some/model", tmp_path)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    ran = process(command, *words, env=environment)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-2:] == [
        "error: some/model is neither a folder here nor complete in the hub's cache, and "
        "HF_HUB_OFFLINE is set.",
        "hint: Give a local folder, or download the model once with network access.",
    ]


@COMMANDS
@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (Spec(), "model.safetensors"),
        (Spec(shards=2), "model-00002-of-00002.safetensors"),
        (Spec(file="pytorch_model.bin"), "pytorch_model.bin"),
    ],
)
def test_a_link_to_nothing_has_one_sentence_in_every_command(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, command: str, spec: Spec, name: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder, spec)
    (folder / name).unlink()
    (folder / name).symlink_to("../gone")
    ran = Cli(capfd)(command, *words_of(command, str(folder), tmp_path))
    assert ran.code == 2
    assert ran.err.splitlines()[-2:] == [
        f"error: {folder / name} is a link to ../gone, which is not there.",
        "hint: Mend the link, or put the file itself in its place.",
    ]
    assert not (tmp_path / "o.jsonl").exists()


def test_a_link_to_nothing_that_is_not_read_is_let_be(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder, Spec())
    mark = model_fingerprint(folder)
    (folder / "pytorch_model.bin").symlink_to("../gone")
    (folder / "other.safetensors").symlink_to("../gone")
    assert model_fingerprint(folder) == mark
    assert Cli(capfd)("inspect", folder).code == 0


def test_a_tokenizer_that_is_not_cached_is_named(tmp_path: Path) -> None:
    cache_model(tmp_path, Spec())
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    (tmp_path / "prompts.txt").write_text("def f")
    ran = process("generate", tmp_path / "prompts.txt", "--tokenizer", "some/model",
                  env=environment)  # fmt: skip
    assert ran.code == 2 and "some/model is neither a folder here nor complete" in ran.err
    assert "download the tokenizer once" in ran.err


class Answers:
    """Errors of huggingface_hub, as a stand-in for its server."""

    def __init__(self, name: str) -> None:
        import httpx2
        from huggingface_hub import errors

        response = httpx2.Response(403, request=httpx2.Request("GET", "https://hub.test/x"))
        kind = getattr(errors, name, None)
        self.error = OSError(28, "No space left for hf_secret") if kind is None else None
        if kind is not None:
            self.error = kind("refused hf_secret", response=response)

    def __call__(self, *args: object, **kwargs: object) -> str:
        assert self.error is not None
        raise self.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", ["gated"]),
        ("RevisionNotFoundError", ["no revision 'v1'"]),
        ("RepositoryNotFoundError", ["no such model", "private"]),
        ("HfHubHTTPError", ["could not be fetched"]),
        ("a full disk", ["could not be fetched", "No space left"]),
    ],
)
def test_each_answer_of_the_hub_has_its_sentence(
    error: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", Answers(error))
    with pytest.raises(SantagenError) as caught:
        resolve_model("some/model", revision="v1", token="hf_secret")
    assert all(word in caught.value.message for word in ["some/model", *words])
    assert caught.value.hint
    assert "hf_secret" not in caught.value.message
    shown = "".join(traceback.format_exception(caught.value))
    assert "hf_secret" not in shown.replace('token="hf_secret"', "")


def test_a_token_of_the_environment_is_not_shown_either(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Answers("HfHubHTTPError"))
    with pytest.raises(SantagenError, match="could not be fetched") as caught:
        resolve_model("some/model")
    assert "hf_secret" not in "".join(traceback.format_exception(caught.value))


def test_half_a_token_is_not_shown() -> None:
    error = OSError("x" * 196 + "hf_secret")
    assert "hf_" not in without_token(error, "hf_secret")[0]


def test_bin_files_are_fetched_only_where_there_are_no_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[list[str]] = []

    def download(model: str, *, allow_patterns: list[str], **others: object) -> str:
        asked.append(allow_patterns)
        assert others["ignore_patterns"] == ["*/*"] and others["token"] == "hf_secret"
        return str(tmp_path)

    for name in ("config.json", "pytorch_model.bin", "tokenizer.json"):
        (tmp_path / name).touch()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    resolve_model("some/model", token="hf_secret")
    assert [".bin" in " ".join(patterns) for patterns in asked] == [False, True]
    assert not any(pattern.endswith(".py") for patterns in asked for pattern in patterns)
    (tmp_path / "model.safetensors").touch()
    asked.clear()
    resolve_model("some/model", token="hf_secret")
    assert len(asked) == 1
    (tmp_path / "model.safetensors").unlink()
    asked.clear()
    resolve_tokenizer("some/model", token="hf_secret")  # no weights for its sake
    assert len(asked) == 1 and not any("model" in pattern for pattern in asked[0])


def test_the_fingerprint_follows_contents_not_the_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    write_checkpoint(first, Spec(shards=2))
    shutil.copytree(first, second)
    mark = model_fingerprint(first)
    assert model_fingerprint(second) == mark
    for name in ("model-00002-of-00002.safetensors", "config.json"):
        path = second / name
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert model_fingerprint(second) != mark
        path.write_bytes(content)
    (second / "quantize_config.json").write_text("{}")
    assert model_fingerprint(second) != mark

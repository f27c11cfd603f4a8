"""`santagen eval` from the command line: both ways of use, consent, resume, comparison, faults."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from santagen.cli.app import run_program
from santagen.evaluation import result
from santagen.evaluation.execution import Pool
from santagen.evaluation.result import samples_path
from tests.evaluation.conftest import ROWS, write_rows

BAD_SECONDS = ("0", "-1", "nan", "inf")
ALLOW = "--allow-code-execution"


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], pool: Pool) -> Any:
    def call(*words: object) -> Ran:
        capfd.readouterr()
        more = [] if {"--compare", "--prompts-out"} & set(words) else ["--unsafe", "--no-progress"]
        code = run_program(["eval", *map(str, words), *more])
        return Ran(code, *capfd.readouterr())

    return call


@pytest.fixture
def samples_file(tmp_path: Path) -> Path:
    rows = [
        {"task_id": row["task_id"], "completion": text}
        for row in ROWS
        for text in (row["canonical_solution"], "    return 17\n")
    ]
    return write_rows(tmp_path / "samples.jsonl", rows)


def test_a_file_is_scored(cli: Any, samples_file: Path, problem_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    ran = cli(samples_file, "--problems", problem_file, ALLOW, "-o", output)
    assert ran.code == 0 and ran.out == "" and "pass@1" in ran.err and "sandbox" in ran.err
    result = json.loads(output.read_text())
    assert result["task"] == "mini" and result["complete"] and not result["partial"]
    assert result["pass_at_k"]["1"]["value"] == 0.5 and set(result["pass_at_k"]) == {"1"}
    assert result["sandbox"]["tier"] in ("namespaces", "bubblewrap", "plain")
    assert result["samples"]["format"] == "samples" and result["model"] is None
    assert {"settings", "versions", "seconds", "self_check", "identity", "classes"} <= set(result)
    rows = [json.loads(line) for line in (tmp_path / "r.samples.jsonl").read_text().splitlines()]
    assert [row["passed"] for row in rows] == [True, False] * 3
    assert rows[1]["result"].startswith("failed") and rows[1]["class"] in ("assertion", "syntax")
    # Its own samples file scores the same.
    again = cli(tmp_path / "r.samples.jsonl", "--problems", problem_file, ALLOW, "-o", "-")
    assert json.loads(again.out)["problems"] == result["problems"]


def test_a_subset_is_scored_and_labelled(cli: Any, tmp_path: Path, problem_file: Path) -> None:
    path = write_rows(
        tmp_path / "one.jsonl", [{"task_id": "Mini/0", "completion": ROWS[0]["canonical_solution"]}]
    )
    ran = cli(path, "--problems", problem_file, ALLOW, "-o", "-")
    result = json.loads(ran.out)
    assert result["partial"] and result["missing"] == ["Mini/1", "Mini/2"]
    assert (
        result["pass_at_k"]["1"]["value"] == 1.0
        and "partial: no samples of Mini/1, Mini/2" in ran.err
    )


@pytest.mark.parametrize("form", ["samples", "bigcode"])
def test_some_problems_of_a_file_are_scored(
    cli: Any, tmp_path: Path, problem_file: Path, form: str
) -> None:
    right = ROWS[1]["prompt"] + ROWS[1]["canonical_solution"]
    path = tmp_path / ("s.jsonl" if form == "samples" else "generations_mini.json")
    if form == "samples":
        rows = [{"task_id": row["task_id"], "solution": "x"} for row in ROWS]
        write_rows(path, [rows[0], {**rows[1], "solution": right}, rows[2]])
    else:
        path.write_text(json.dumps([["x"], [right], ["x"]]))
    words = [path, "--problems", problem_file, ALLOW, "-o", "-"]
    ran = cli(*words, "--only", "Mini/1")
    result = json.loads(ran.out)
    assert result["partial"] and result["pass_at_k"]["1"]["value"] == 1.0
    assert list(result["problems"]) == ["Mini/1"]
    assert list(json.loads(cli(*words, "--limit", 1).out)["problems"]) == ["Mini/0"]
    if form == "samples":
        write_rows(path, rows[:1])
        assert "no samples of the problems asked for" in cli(*words, "--only", "Mini/1").err


def test_a_pass_at_k_that_was_asked_for_is_never_silently_absent(
    cli: Any, samples_file: Path, problem_file: Path
) -> None:
    words = [samples_file, "--problems", problem_file, ALLOW, "-o", "-"]
    ran = cli(*words, "--k", 2, "--k", 3)
    assert set(json.loads(ran.out)["pass_at_k"]) == {"2"}
    assert "pass@3 left out: a problem has 2 samples only" in ran.err
    assert "left out" not in cli(*words).err


def test_a_program_is_scored_again_as_it_was_run(
    cli: Any, tmp_path: Path, problem_file: Path
) -> None:
    """With the prompt before it, this one would not fail."""
    program = "def double(n):\n    return 2 * n\nassert __doc__ != None, 'no prompt'\n"
    row = {"task_id": "Mini/2", "solution": "def decode(s):\n    return code(s)\n"}
    path = write_rows(tmp_path / "s.jsonl", [row, {"task_id": "Mini/0", "solution": program}])
    words = ["--problems", problem_file, ALLOW, "-o"]
    assert cli(path, *words, tmp_path / "r.json").code == 0
    first = [json.loads(line) for line in (tmp_path / "r.samples.jsonl").read_text().splitlines()]
    assert cli(tmp_path / "r.samples.jsonl", *words, tmp_path / "again.json").code == 0
    text = (tmp_path / "again.samples.jsonl").read_text()
    second = [json.loads(line) for line in text.splitlines()]
    for item in (*first, *second):
        del item["cpu_seconds"]
    assert first == second
    assert [item["result"] for item in first][1].startswith("failed: NameError")


def test_nothing_runs_without_consent(
    cli: Any, samples_file: Path, problem_file: Path, monkeypatch: Any
) -> None:
    ran = cli(samples_file, "--problems", problem_file)
    assert ran.code == 2 and "--allow-code-execution" in ran.err
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    assert cli(samples_file, "--problems", problem_file).code == 0


def test_a_failed_self_check_yields_no_score(cli: Any, samples_file: Path, tmp_path: Path) -> None:
    bad = [{**ROWS[0], "canonical_solution": "    return 1\n"}, *ROWS[1:]]
    path = write_rows(tmp_path / "bad.jsonl", bad)
    ran = cli(samples_file, "--problems", path, ALLOW, "-o", tmp_path / "r.json")
    assert ran.code == 2 and "self-check failed" in ran.err and "pass@1" not in ran.err
    assert not (tmp_path / "r.json").exists()


def test_a_failed_start_leaves_an_earlier_result_alone(
    cli: Any, samples_file: Path, problem_file: Path, tmp_path: Path
) -> None:
    output = tmp_path / "r.json"
    assert cli(samples_file, "--problems", problem_file, ALLOW, "-o", output).code == 0
    before = [path.read_bytes() for path in sorted(tmp_path.glob("r.*"))]
    bad = [{**ROWS[0], "canonical_solution": "    return 1\n"}, *ROWS[1:]]
    broken = write_rows(tmp_path / "bad.jsonl", bad)
    ran = cli(samples_file, "--problems", broken, ALLOW, "-o", output, "--overwrite")
    assert ran.code == 2 and "self-check failed" in ran.err
    assert [path.read_bytes() for path in sorted(tmp_path.glob("r.*"))] == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.jsonl", ALLOW], "neither a task nor a file"),
        (["infilling", ALLOW], "needs a file of problems"),
        (["mini", "--resume", ALLOW], "--resume needs a result file"),
        (["mini", "--greedy", "--temperature", "0.5", ALLOW], "--greedy is one sample"),
        (["mini", "--only", "Mini/99", ALLOW], "no problem Mini/99"),
        (["mini", "--temperature", "0", "-n", "2", ALLOW], "greedy samples would all be equal"),
        ([], "takes one task or one file"),
        (["--compare", "a.json"], "two result files"),
        (["--compare", "a.json", "b.json"], "a.json does not exist"),
        (["mini", "-n", "0", ALLOW], "n is 0"),
        (["mini", "-n", "-3", ALLOW], "n is -3"),
        (["mini", "--greedy", "-n", "0", ALLOW], "--greedy is one sample"),
        (["mini", "--max-tokens", "0", ALLOW], "--max-tokens can't be '0'"),
        (["mini", "--problems", "5.json", ALLOW], "neither an object nor a list"),
        (["mbpp", "--problems", "no_test.jsonl", ALLOW], "it is no problem of task mbpp"),
        (["mini", "--k", "0"], "--k can't be '0'"),
        *((["mini", "--timeout", text], f"--timeout can't be '{text}'") for text in BAD_SECONDS),
        (["mini", "--format", "evalplus", ALLOW], "--format is the form of --samples-out"),
        (["mini", "--task", "mbpp", ALLOW], "--task mbpp is the task of a file"),
        (["s.jsonl", "-m", "x", ALLOW], "--model is about generating"),
        (["s.jsonl", "--greedy", ALLOW], "--greedy is about generating"),
        (["s.jsonl", "-n", "5", ALLOW], "--n is about generating"),
        (["s.jsonl", "--max-num-seqs", "5", ALLOW], "--max-num-seqs is about generating"),
        (["mini", "--samples-out", "no/folder/s.jsonl", ALLOW], "folder no/folder of"),
        (["mini", "--samples-out", "/", ALLOW], "--samples-out / is a directory"),
        (["mini", "-dp", "2", ALLOW], "eval runs in one process, and -dp asks for 2."),
        (["mini", "-tp", "2", ALLOW], "eval runs in one process, and -tp asks for 2."),
        (["s.jsonl", "--prompts-out", "p.jsonl"], "and s.jsonl is a file"),
        (["mini", "--prompts-out", "s.jsonl"], "s.jsonl exists"),
        (["mini", "--prompts-out", "p.jsonl", "-m", "x"], "--model says nothing to --prompts-out"),
        (["mini", "--prompts-out", "p.jsonl", "-o", "r"], "--output says nothing to --prompts-out"),
        (["--compare", "a", "b", "--greedy"], "--greedy says nothing to --compare"),
    ],
)
def test_faults_are_one_message(
    cli: Any, words: list[str], message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "s.jsonl", [{"task_id": "Mini/0", "completion": ""}])
    (tmp_path / "5.json").write_text("5")
    row = {"task_id": 11, "text": "", "code": "a = 1", "test_list": []}
    write_rows(tmp_path / "no_test.jsonl", [row])
    ran = cli(*words)
    assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("broken", ["write_all", "write_atomically"])
def test_a_full_disk_is_told_with_what_is_safe(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    write, calls, most = getattr(result, broken), [], {"write_all": 2, "write_atomically": 1}

    def fill(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > most[broken]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    out = tmp_path / "result.json"
    words = ("mini-infilling", "--limit", 2, "-o", out)
    with monkeypatch.context() as full:
        full.setattr(result, broken, fill)
        ran = cli(*words)
    assert ran.code == 2 and f"error: Can't write {out}: No space left on device." in ran.err
    assert "safe in it" in ran.err and "--resume" in ran.err
    ran = cli(*words, "--resume")
    assert ran.code == 0 and len(json.loads(out.read_text())["problems"]) == 2, ran.err


def test_a_device_without_memory_goes_on_smaller_and_says_so(
    cli: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    import torch

    from santagen.engine.model_runner import ModelRunner

    launch, launches = ModelRunner.launch, [0]

    def scarce(self: ModelRunner, step: Any) -> Any:
        launches[0] += 1
        if launches[0] == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return launch(self, step)

    monkeypatch.setattr(ModelRunner, "launch", scarce)
    words = ["mini", "--only", "Mini/1", "--only", "Mini/4", "-n", 2, "--length-limit", 150]
    ran = cli(*words, ALLOW, "-o", tmp_path / "r.json")
    assert ran.code == 0 and "4 samples" in ran.err, ran.err
    assert ran.err.count("warning: The device ran out of memory with 4 sequences") == 1


def test_several_processes_are_refused_with_a_remedy(monkeypatch: Any, cli: Any) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    ran = cli("mini", ALLOW)
    assert ran.code == 2 and "eval runs in one process, and torchrun started 2." in ran.err
    assert "--prompts-out FILE" in ran.err
    # torchrun ends the others as soon as one fails: only rank 0 does, once it has said why.
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    ran = cli("mini", ALLOW)
    assert (ran.code, ran.err) == (0, "")


def test_prompts_for_generate_give_the_same_samples(cli: Any, tmp_path: Path) -> None:
    """The remedy of the refusal above."""
    prompts, samples = tmp_path / "p.jsonl", tmp_path / "s.jsonl"
    words = ["mini", "--only", "Mini/1", "--only", "Mini/4"]
    more = ["-n", 2, "--length-limit", 120, "--seed", 5]
    ran = cli(*words, *more, "--prompts-out", prompts)
    assert ran.code == 0 and f"santagen generate {prompts} -m MODEL" in ran.err
    assert "--max-model-len 120" in ran.err and "--only Mini/4 --allow-code" in ran.err
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    assert [row["task_id"] for row in rows] == ["Mini/1", "Mini/4"]
    assert all(row["prompt"].endswith('"""') and "\ndef" in row["stop"] for row in rows)
    generate = ["generate", str(prompts), "-o", str(samples), "--max-model-len", "120"]
    assert run_program([*generate, "--no-progress"]) == 0
    result, direct = tmp_path / "r.json", tmp_path / "d.json"
    assert cli(samples, "--task", *words, ALLOW, "-o", result).code == 0
    assert cli(*words, *more, ALLOW, "-o", direct).code == 0
    texts = [
        [json.loads(line)["completion"] for line in samples_path(path).read_text().splitlines()]
        for path in (result, direct)
    ]
    assert texts[0] == texts[1] and len(set(texts[0])) > 2
    (row,) = cli("mini-infilling", "--limit", 1, "--prompts-out", "-").out.splitlines()
    assert {"prefix", "suffix", "max_tokens", "stop"} <= set(json.loads(row))


@pytest.mark.parametrize("change", [{"index": 77}, {"index": -1}, {"task_id": "else"}])
@pytest.mark.parametrize("by_model", [True, False])
def test_a_foreign_line_of_the_journal_is_refused(
    cli: Any, samples_file: Path, problem_file: Path, tmp_path: Path,
    change: dict[str, Any], by_model: bool,
) -> None:  # fmt: skip
    out = tmp_path / "r.json"
    words = ["mini-infilling", "--limit", 1, "-o", out]
    if not by_model:
        words = [samples_file, "--problems", problem_file, ALLOW, "-o", out]
    assert cli(*words).code == 0
    journal = samples_path(out)
    before = journal.read_text().splitlines(keepends=True)
    foreign = json.loads(before[0]) | change
    journal.write_text("".join([*before, json.dumps(foreign) + "\n"]))
    ran = cli(*words, "--resume")
    assert ran.code == 2 and f"{journal}, line {len(before) + 1} holds sample" in ran.err
    journal.write_text("".join(before))
    assert cli(*words, "--resume").code == 0


def test_no_file_that_is_read_or_exists_is_replaced(
    cli: Any, samples_file: Path, problem_file: Path, tmp_path: Path
) -> None:
    a, there = tmp_path / "a.json", tmp_path / "there.jsonl"
    words = ["--problems", problem_file, ALLOW]
    assert cli(samples_file, *words, "-o", a).code == 0
    there.write_text("mine")
    journal, alias = tmp_path / "a.samples.jsonl", tmp_path / "alias.jsonl"
    alias.symlink_to(samples_file)
    hard, config = tmp_path / "hard.jsonl", tmp_path / "run.toml"
    hard.hardlink_to(samples_file)
    (tmp_path / "new.json.tmp").hardlink_to(samples_file)
    config.write_text("[eval]\n")
    before = {path: path.read_bytes() for path in tmp_path.glob("*.json*")}
    for call, message in (
        ([samples_file, *words, "--samples-out", samples_file, "--overwrite"], "which is read"),
        ([samples_file, *words, "--samples-out", alias, "--overwrite"], "which is read"),
        ([samples_file, *words, "--samples-out", problem_file, "--overwrite"], "which is read"),
        ([samples_file, *words, "-o", samples_file, "--overwrite"], "which is read"),
        ([samples_file, *words, "-o", hard, "--overwrite"], "which is read"),
        ([samples_file, *words, "-o", tmp_path / "new.json"], "which is read"),
        ([samples_file, *words, "--config", config, "-o", config, "--overwrite"], "which is read"),
        (
            ["mini", "--problems", problem_file, "--prompts-out", problem_file, "--overwrite"],
            "which is read",
        ),
        ([journal, *words, "-o", a, "--overwrite"], "which is read"),
        ([samples_file, *words, "--samples-out", there], f"{there} exists"),
        ([samples_file, *words, "-o", a, "--samples-out", journal, "--resume"], "itself"),
        (["--compare", a, a, "-o", a, "--overwrite"], "which is read"),
        (["--compare", a, a, "-o", there], f"{there} exists"),
        (["--compare", a, a, "-o", tmp_path / "no" / "c.json"], "does not exist"),
    ):
        ran = cli(*call)
        assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err, ran.err
    assert {path: path.read_bytes() for path in tmp_path.glob("*.json*")} == before
    assert cli(samples_file, *words, "--samples-out", there, "--overwrite").code == 0
    assert len(there.read_text().splitlines()) == 6
    assert cli("--compare", a, a, "-o", there, "--overwrite").code == 0
    assert json.loads(there.read_text())["task"] == "mini"


def test_results_of_multipl_e_hold_their_problems(cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    for name, answers in (("double", [2, 4]), ("triple", [3, 3])):
        right = f"[[ $(f 1) == {answers[0]} ]]"
        problem = {"name": name, "language": "sh", "prompt": "f() {\n", "tests": f"}}\n{right}"}
        texts = [f"echo $(($1 * {answer}))" for answer in answers]
        content = json.dumps({**problem, "stop_tokens": ["\n}"], "completions": texts})
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(content.encode()))
    result = json.loads(cli(folder, ALLOW, "-o", "-").out)
    assert result["task"] == "multipl-e" and not result["partial"]
    assert {name: (p["n"], p["c"]) for name, p in result["problems"].items()} == {
        "double": (2, 1),
        "triple": (2, 2),
    }
    one = folder / "double.json.gz"
    output = tmp_path / "r.json"
    assert cli(one, ALLOW, "-o", output).code == 0
    assert json.loads(output.read_text())["pass_at_k"]["1"]["value"] == 0.5
    # Other tasks' samples in this form keep their task.
    own = {"name": "Mini/0", "language": "py", "prompt": "", "tests": "", "completions": ["x"]}
    (tmp_path / "own.json").write_text(json.dumps(own))
    ran = cli(tmp_path / "own.json", ALLOW, "-o", "-")
    assert json.loads(ran.out)["task"] == "mini"
    # A folder that changed is another folder.
    words = [folder, ALLOW, "--task", "multipl-e", "-o", tmp_path / "f.json"]
    assert cli(*words).code == 0
    one.unlink()
    ran = cli(*words, "--resume")
    assert ran.code == 2 and "samples was" in ran.err


def test_options_from_elsewhere_may_be_idle(
    cli: Any, samples_file: Path, problem_file: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SANTAGEN_EVAL_N", "5")
    ran = cli(samples_file, "--problems", problem_file, ALLOW, "-o", "-")
    assert ran.code == 0 and json.loads(ran.out)["problems"]["Mini/0"]["n"] == 2


def test_results_are_compared(
    cli: Any, samples_file: Path, problem_file: Path, tmp_path: Path
) -> None:
    right = [{"task_id": row["task_id"], "completion": row["canonical_solution"]} for row in ROWS]
    better = write_rows(tmp_path / "right.jsonl", right)
    for path, name in ((samples_file, "a.json"), (better, "b.json")):
        assert cli(path, "--problems", problem_file, ALLOW, "-o", tmp_path / name).code == 0
    ran = cli("--compare", tmp_path / "a.json", tmp_path / "b.json", "-o", "-")
    found = json.loads(ran.out)["pass_at_k"]["1"]
    assert (found["a"], found["b"], found["better"]) == (0.5, 1.0, 3)
    assert "+50.00" in ran.err


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    """A result less what no two runs share."""
    generation = result["generation"] and {
        name: value for name, value in result["generation"].items() if name != "timeline"
    }
    settings = {name: value for name, value in result["settings"].items() if name != "output"}
    return {**result, "seconds": 0, "generation": generation, "settings": settings}


def test_the_bundled_model_is_generated_with_and_scored(cli: Any, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    words = ["mini", "--limit", 3, "-n", 2, "--max-tokens", 48, ALLOW, "-o", output]
    ran = cli(*words, "--samples-out", tmp_path / "g.json", "--format", "bigcode")
    assert ran.code == 0, ran.err
    result = json.loads(output.read_text())
    assert result["partial"] and set(result["problems"]) == {"Mini/0", "Mini/1", "Mini/2"}
    assert all(problem["n"] == 2 for problem in result["problems"].values())
    assert (
        result["settings"]["sampling"]["temperature"] == 0.8
        and result["settings"]["sampling"]["seed"] == 0
    )
    assert len(result["model"]["fingerprint"]) == 64 and "at most 48 new tokens" in ran.err
    assert [len(texts) for texts in json.loads((tmp_path / "g.json").read_text())] == [2, 2, 2]
    assert cli(*words).code == 2  # it exists
    before = output.read_text()
    # A finished result is left as it is, without loading the model.
    assert cli(*words, "--resume").code == 0
    first, second = json.loads(before), json.loads(output.read_text())
    for found in (first, second):
        for name in ("samples_out", "format"):
            found["settings"].pop(name)
    assert without_times(first) == without_times(second)


def test_an_interrupted_run_goes_on_to_the_same_result(
    cli: Any, tmp_path: Path, root: Path
) -> None:
    words = [
        "mini",
        "--limit",
        "4",
        "-n",
        "3",
        "--max-tokens",
        "32",
        ALLOW,
        "--no-progress",
        "--unsafe",
    ]
    output = tmp_path / "r.json"
    command = [sys.executable, "-m", "santagen", "eval", *words, "-o", str(output)]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, encoding="utf-8")
    journal = tmp_path / "r.samples.jsonl"
    until = time.monotonic() + 60
    while time.monotonic() < until and (
        not journal.exists() or journal.read_bytes().count(b'"class"') < 3
    ):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Go on with: santagen eval mini" in said, said
    ran = cli(*words[:8], "-o", output, "--resume")
    assert ran.code == 0 and "s of them now)" in ran.err
    assert cli(*words[:8], "-o", tmp_path / "whole.json").code == 0
    results = [
        without_times(json.loads((tmp_path / name).read_text()))
        for name in ("r.json", "whole.json")
    ]
    assert results[0] == results[1]
    now = float(re.findall(r"in ([\d.]+) s \(([\d.]+) s of them now", ran.err)[0][1])
    assert json.loads(output.read_text())["seconds"] > now + 0.1
    rows = [
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("r.samples.jsonl", "whole.samples.jsonl")
    ]
    times = [row["generated_at"] for row in rows[0]]
    assert min(times) >= 0 and len(set(times)) > 1
    for row in (*rows[0], *rows[1]):
        del row["generated_at"], row["cpu_seconds"]
    assert rows[0] == rows[1] and len(rows[0]) == 12


def test_an_interruption_before_the_first_verdict_leaves_an_earlier_result(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "r.json"
    words = ["mini", "--limit", 2, "-n", 1, "--max-tokens", 8, ALLOW, "-o", output]
    with monkeypatch.context() as patch:
        patch.setattr("santagen.cli.eval_run.generate_samples", interrupt)
        ran = cli(*words)
        assert ran.code == 130 and f"first verdict: {output} was not made" in ran.err, ran.err
        assert list(tmp_path.iterdir()) == []
    assert cli(*words).code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("santagen.cli.eval_run.generate_samples", interrupt)
    ran = cli("mini", "--limit", 3, *words[3:], "--overwrite")
    assert ran.code == 130 and f"first verdict: {output} is as it was" in ran.err, ran.err
    assert "--resume" not in ran.err and "same command" in ran.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("form", ["samples", "evalplus", "bigcode"])
def test_scoring_a_file_goes_on_to_the_same_result(
    cli: Any, problem_file: Path, tmp_path: Path, form: str
) -> None:
    """Killed after some lines of the journal: a sample without a verdict, and half a line."""
    programs = [row["prompt"] + row["canonical_solution"] for row in ROWS]
    # A whole program that doesn't begin with the prompt.
    programs[0] = "import math\ndef double(n):\n    return n + n\n"
    samples = [
        {"task_id": row["task_id"], "solution": text}
        for row, program in zip(ROWS, programs, strict=True)
        for text in (program, program + "    # again\n", row["prompt"] + "    return (\n")
    ]
    path = tmp_path / "s.jsonl"
    if form == "bigcode":
        path = tmp_path / "generations_mini.json"
        path.write_text(
            json.dumps([[s["solution"] for s in samples[i : i + 3]] for i in (0, 3, 6)])
        )
    elif form == "evalplus":
        write_rows(path, samples)
    else:
        rows = [
            {"task_id": row["task_id"], "completion": text}
            for row in ROWS
            for text in (row["canonical_solution"], "    return 3\n")
        ]
        write_rows(path, rows)
    words = [path, "--problems", problem_file, ALLOW, "-o", tmp_path / "r.json"]
    assert cli(*words).code == 0
    whole = json.loads((tmp_path / "r.json").read_text())
    journal = tmp_path / "r.samples.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    names = ("task_id", "index", "completion", "solution")
    waiting = [{name: line[name] for name in names if name in line} for line in lines]
    kept = [*waiting[:2], lines[3], lines[-1]]
    journal.write_text("".join(json.dumps(row) + "\n" for row in kept) + '{"task_id": "Mi')
    assert cli(*words, "--resume").code == 0
    assert without_times(json.loads((tmp_path / "r.json").read_text())) == without_times(whole)
    again = [json.loads(line) for line in journal.read_text().splitlines()]
    for row in (*lines, *again):
        del row["cpu_seconds"]
    assert again == lines
    assert any(problem["c"] for problem in whole["problems"].values())

"""Whole runs that are killed, run out of room, meet each other, or whose surroundings change."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import santagen.io.output_files
from tests.cli.helpers import PROGRAM, TIMEOUT, Cli, process, read_jsonl, write_jsonl
from tests.cli.kills import check_equal, kill_and_resume, mixed_run
from tests.cli.preloaded import Preloaded

FEW = ("--max-tokens", "3", "--device", "cpu")
ROWS = [{"prompt": f"def f{n}(x):", "note": "x" * 2000} for n in range(12)]


def test_a_run_killed_at_random_moments_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    left = list(kill_and_resume(mixed_run(tmp_path), tmp_path, kills=15))
    assert len(left) == 15 and any(left)  # not all of them before the first sample


# -- room ------------------------------------------------------------------------------------------


@cache
def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    line = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    return subprocess.run(line, capture_output=True).returncode == 0


def on_tmpfs(folder: Path, script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """A shell script in a mount namespace, where `folder` is a file system of 16 KiB."""
    if not can_mount():
        pytest.skip("no file system can be mounted here")
    mount = f"set -u; mount -t tmpfs -o size=16k none {folder}; {script}"
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", *map(str, words)],
        capture_output=True, encoding="utf-8", timeout=TIMEOUT,
    )  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def test_a_full_disk_ends_the_run_and_room_lets_it_go_on(
    cli: Cli, tmp_path: Path, disk: Path
) -> None:
    prompts = write_jsonl(tmp_path / "p.jsonl", ROWS)
    run = ("generate", prompts, *FEW, "--keep", "note", "-o")
    whole, kept = tmp_path / "whole.jsonl", tmp_path / "kept"
    assert cli(*run, whole).code == 0 and whole.stat().st_size > 16384
    kept.mkdir()
    script = f"""
        "$@"; echo "ended with $?" >&2
        cp {disk}/broken.jsonl {kept}/torn
        mount -o remount,size=1m {disk}
        "$@" --resume; echo "resumed with $?" >&2
        cp {disk}/* {kept}
    """
    ran = on_tmpfs(disk, script, *PROGRAM, *run, disk / "broken.jsonl")
    assert "ended with 2" in ran.stderr and "resumed with 0" in ran.stderr, ran.stderr
    assert "No space left on device" in ran.stderr and " safe in it." in ran.stderr
    assert "--resume" in ran.stderr and "Traceback" not in ran.stderr
    torn = (kept / "torn").read_bytes()
    assert torn.endswith(b"\n") and 0 < torn.count(b"\n") < len(ROWS)
    check_equal(whole, kept / "broken.jsonl")


def test_a_file_size_limit_is_like_a_full_disk(cli: Cli, tmp_path: Path) -> None:
    prompts = write_jsonl(tmp_path / "p.jsonl", ROWS)
    run = ("generate", prompts, *FEW, "--keep", "note", "-o")
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert cli(*run, whole).code == 0

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))

    ran = process(*run, broken, preexec_fn=limit)
    assert ran.code == 2 and "File too large" in ran.err and " safe in it." in ran.err
    assert cli(*run, broken, "--resume").code == 0
    check_equal(whole, broken)


def test_a_read_only_disk_is_refused_before_the_model_loads(
    prompts: Path, disk: Path
) -> None:
    script = f'mount -o remount,ro {disk}; "$@"; echo "ended with $?" >&2'
    run = ("generate", prompts, *FEW, "-o", disk / "out.jsonl")
    ran = on_tmpfs(disk, script, *PROGRAM, *run)
    assert "ended with 2" in ran.stderr and "Read-only file system" in ran.stderr
    assert "hint: Check the permissions" in ran.stderr and "attention" not in ran.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_that_may_not_be_written(cli: Cli, prompts: Path, disk: Path) -> None:
    output = disk / "out.jsonl"
    assert cli.generate(prompts, *FEW, "-o", output).code == 0
    output.chmod(0o444)
    ran = cli.generate(prompts, *FEW, "-o", output, "--overwrite")
    assert ran.code == 2 and "Permission denied" in ran.err
    disk.chmod(0o555)
    ran = cli.generate(prompts, *FEW, "-o", disk / "other.jsonl")
    assert ran.code == 2 and "Permission denied" in ran.err
    disk.chmod(0o755)


# -- streams ---------------------------------------------------------------------------------------


def shell(line: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`line` in a shell, with the program's words as "$@"."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *PROGRAM, *map(str, arguments)],
        capture_output=True, encoding="utf-8", timeout=TIMEOUT,
    )  # fmt: skip


def test_a_reader_that_leaves_a_pipe_ends_the_run_with_one_message(tmp_path: Path) -> None:
    prompts = write_jsonl(tmp_path / "p.jsonl", ROWS)
    line = '{ "$@"; echo "ended with $?" >&2; } | head -n 1'
    ran = shell(line, "generate", prompts, *FEW, "--max-num-seqs", "1")
    assert len(ran.stdout.splitlines()) == 1 and json.loads(ran.stdout)["index"] == 0
    assert "ended with 2" in ran.stderr and "reader of the output went away" in ran.stderr
    assert "Traceback" not in ran.stderr and "BrokenPipe" not in ran.stderr


def test_a_slow_reader_gets_every_line(tmp_path: Path) -> None:
    rows = [{"prompt": f"def f{n}(x):", "note": "x" * 40_000} for n in range(12)]
    prompts = write_jsonl(tmp_path / "p.jsonl", rows)  # many times what a pipe holds
    line = '"$@" | (sleep 1; while read -r row; do sleep 0.05; printf "%s\\n" "$row"; done)'
    ran = shell(line, "generate", prompts, *FEW, "--keep", "note", "-q")
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(record["task_id"] for record in found) == list(range(12))
    assert all(len(record["note"]) == 40_000 for record in found)


def test_a_slow_writer_of_stdin_is_waited_for() -> None:
    line = '(echo \'{"id": "a", "prompt": "x"}\'; sleep 2; printf \'{"id": "b", \'; sleep 1; '
    ran = shell(line + "echo '\"prompt\": \"y\"}') | \"$@\"", "generate", "-", *FEW)
    assert ran.returncode == 0, ran.stderr
    assert {json.loads(line)["task_id"] for line in ran.stdout.splitlines()} == {"a", "b"}


def test_stdin_that_ends_inside_a_row_fails_that_row_alone() -> None:
    ran = process("generate", "-", *FEW, input='{"id": "a", "prompt": "x"}\n{"id": "b", "pro')
    assert ran.code == 1 and [sample["task_id"] for sample in ran.samples] == ["a"]
    assert "stdin, line 2: the line is not JSON" in ran.err and "1 row failed" in ran.err
    ran = process("generate", "-", *FEW, input='{"id": "a", "prompt": "x"}')
    assert ran.code == 0 and len(ran.samples) == 1  # no line end is no fault


# -- two runs, another time, other prompts ---------------------------------------------------------


def test_a_second_run_on_one_output_is_refused(cli: Cli, tmp_path: Path) -> None:
    command = [*mixed_run(tmp_path), "-o", tmp_path / "out.jsonl"]
    lock = tmp_path / "out.jsonl.lock"
    with Preloaded(tmp_path / "messages") as program:
        program.start(*command)
        deadline = time.monotonic() + TIMEOUT
        while not lock.exists():
            assert time.monotonic() < deadline, program.log.read_text()
            time.sleep(0.001)
        for flags in ([], ["--resume"], ["--overwrite"]):
            ran = cli(*command, *flags)
            assert ran.code == 2
            assert ("Another run is writing" in ran.err) or (not flags and "exists" in ran.err)
        assert program.wait() == 1, program.log.read_text()
    assert not lock.exists()
    assert len(read_jsonl(tmp_path / "out.jsonl")) == 14


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_jumps_changes_no_sample(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    command = mixed_run(tmp_path)
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert cli(*command, "-o", whole).code == cli(*command, "-o", broken).code == 1
    broken.write_bytes(b"".join(broken.read_bytes().splitlines(keepends=True)[:5]))
    true_time = time.time

    class Jumped(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> Any:
            return datetime.now(UTC) + timedelta(days=365 * years)

    monkeypatch.setattr(time, "time", lambda: true_time() + years * 365 * 86400)
    monkeypatch.setattr(santagen.io.output_files, "datetime", Jumped)
    ran = cli(*command, "-o", broken, "--resume")
    assert ran.code == 1, ran.err
    check_equal(whole, broken)
    manifest = json.loads(Path(f"{broken}.manifest.json").read_text())
    assert 0 < manifest["run"]["seconds"] < 600
    (earlier,) = manifest["earlier_runs"]
    assert (manifest["run"]["started"] > earlier["started"]) == (years > 0)


def test_prompts_that_changed_are_refused_by_a_resume(
    cli: Cli, prompts: Path, output: Path
) -> None:
    assert cli.generate(prompts, "-o", output, *FEW).code == 0
    whole, rows = output.read_bytes(), prompts.read_text()
    output.write_bytes(whole.splitlines(keepends=True)[0])
    left = output.read_bytes()
    for changed in (rows.replace("square(x)", "square(y)"), rows + '{"prompt": "x"}\n'):
        prompts.write_text(changed)
        ran = cli.generate(prompts, "-o", output, *FEW, "--resume")
        assert ran.code == 2 and "prompts was" in ran.err and "--overwrite" in ran.err
        assert output.read_bytes() == left
    prompts.write_text(rows)
    assert cli.generate(prompts, "-o", output, *FEW, "--resume").code == 0
    assert output.read_bytes() == whole


def test_prompts_that_change_under_a_run_end_it(
    cli: Cli, tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = write_jsonl(tmp_path / "p.jsonl", ROWS)
    make = santagen.llm.LLM.__init__

    def change(self: Any, *arguments: Any, **settings: Any) -> None:
        make(self, *arguments, **settings)
        write_jsonl(prompts, ROWS[:3])

    monkeypatch.setattr(santagen.llm.LLM, "__init__", change)
    ran = cli.generate(prompts, "-o", output, *FEW, "--max-num-seqs", "1")
    assert ran.code == 2 and f"{prompts} changed while it was being read" in ran.err
    monkeypatch.undo()
    write_jsonl(prompts, ROWS)
    assert cli.generate(prompts, "-o", output, *FEW, "--resume").code == 0
    assert [row["task_id"] for row in read_jsonl(output)] == list(range(len(ROWS)))


# -- size ------------------------------------------------------------------------------------------


def test_a_huge_row_fails_alone_and_takes_little_memory(tmp_path: Path) -> None:
    huge = "def f(x):\n    return x + 1\n" * 750_000  # 20 MB
    rows = [{"prompt": "x"}, {"prompt": huge}, {"prompt": "y"}]
    prompts = write_jsonl(tmp_path / "p.jsonl", rows)
    code = (
        "import resource, sys\nfrom santagen.cli.app import run_program\n"
        "code = run_program(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, "generate", str(prompts), *FEW],
        capture_output=True, encoding="utf-8", timeout=TIMEOUT,
    )  # fmt: skip
    assert child.returncode == 1, child.stderr
    assert f"{prompts}, line 2: the prompt has at least" in child.stderr
    assert "1 row failed" in child.stderr and len(child.stdout.splitlines()) == 2
    assert int(child.stderr.splitlines()[-1]) < 1_500_000  # KiB


def test_a_huge_line_that_is_no_row_is_shown_by_its_place(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "x"}\n{"prompt": "' + b"y" * 20_000_000 + b"\n")
    ran = cli.generate(path, *FEW)
    assert ran.code == 1 and f"{path}, line 2: the line is not JSON" in ran.err
    assert len(ran.err) < 2000

"""Kills at every step, full disks, two runs at once, and outputs that are no files."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from santagen.errors import SantagenError
from santagen.io.files import refused, write_all
from santagen.io.manifest import read_manifest
from tests.io.output_runs import files, in_child, kill_at, open_writer, run, sample

FORMS = pytest.mark.parametrize("form", ["jsonl", "openai-batch"])
SOME = 5  # samples that fit on the small disk


@FORMS
def test_a_run_killed_at_any_step_resumes_to_the_same_bytes(tmp_path: Path, form: str) -> None:
    whole = tmp_path / "whole.jsonl"
    run(whole, format=form)
    wanted = files(whole)
    for step in range(1000):
        path = tmp_path / f"{step}.jsonl"

        def doomed(resume: bool, path: Path = path, step: int = step) -> None:
            kill_at(step)
            run(path, order=step, resume=resume, format=form)

        ends = [in_child(lambda: doomed(False)), in_child(lambda: doomed(True))]
        assert set(ends) <= {-signal.SIGKILL, 0}
        run(path, order=step + 1, resume=True, format=form)
        assert files(path) == wanted, f"step {step}"
        manifest = read_manifest(path)
        assert manifest is not None and manifest["complete"] is True
        extra = {p.name for p in tmp_path.glob(f"{step}.jsonl.*")}
        assert extra == {f"{step}.jsonl.errors.jsonl", f"{step}.jsonl.manifest.json"}
        if ends[0] == 0:
            break
    assert 20 < step < 1000


@FORMS
def test_overwriting_killed_at_any_step_never_mixes_two_runs(tmp_path: Path, form: str) -> None:
    settings: dict[str, Any] = {"identity": {"model": "new"}, "format": form}
    path = tmp_path / "out.jsonl"
    run(path, **settings)
    wanted = files(path)
    for step in range(1000):
        with open_writer(path, overwrite=True, format=form) as writer:  # the old run
            writer.write(sample(0, 0, "old"))
            writer.write(sample(0, 1, "old"))

        def doomed(step: int = step) -> None:
            kill_at(step)
            run(path, overwrite=True, **settings)

        end = in_child(doomed)
        try:
            run(path, resume=True, **settings)
        except SantagenError as refusal:
            assert "model was 'm' and is 'new'" in str(refusal)
            assert b"old" in path.read_bytes()
            continue
        assert files(path) == wanted, f"step {step}"
        if end == 0:
            break
    assert 20 < step < 1000


def test_runs_killed_at_random_moments_resume_to_the_same_bytes(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    run(whole, rows=40)
    path = tmp_path / "out.jsonl"
    chance = random.Random(5)
    kills = 0
    for attempt in range(25):
        pid = os.fork()
        if pid == 0:
            run(path, order=attempt, rows=40, resume=True)
            os._exit(0)
        time.sleep(chance.uniform(0.0, 0.006))
        os.kill(pid, signal.SIGKILL)
        kills += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    run(path, rows=40, resume=True)
    assert kills and files(path) == files(whole)


def test_a_full_disk_keeps_whole_lines_and_a_resume_goes_on(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    run(whole, rows=20)
    line = len(whole.read_bytes().splitlines(keepends=True)[0])
    message = tmp_path / "message"

    def on_a_small_disk() -> None:
        size = SOME * line + line // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            run(path, rows=20)
        except SantagenError as error:
            message.write_text(f"{error.exit_code} {error} {error.hint}")

    assert in_child(on_a_small_disk) == 0
    text = message.read_text()
    assert text.startswith("2 ") and "samples are safe" in text and "--resume" in text
    left = path.read_bytes()
    assert left.endswith(b"\n") and left.count(b"\n") == SOME
    run(path, rows=20, resume=True)
    assert files(path) == files(whole)


def test_no_room_for_the_ordered_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    run(whole)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_writer(path) as writer:
        writer.write(sample(2, 0))
        writer.write(sample(0, 0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(SantagenError, match=r"No space left.* 2 samples are safe"):
                writer.finish([], {})
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith((".tmp", ".lock"))]
    run(path, resume=True)
    assert files(path) == files(whole)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "permissions"),
        (errno.EROFS, "permissions"),
        (errno.EDQUOT, "--resume"),
        (errno.EIO, "Check the disk"),
    ],
)
def test_a_refusal_of_the_system_comes_with_what_helps(number: int, hint: str) -> None:
    error = refused(Path("out.jsonl"), OSError(number, "x"), 3)
    assert os.strerror(number) in error.message and "3 samples" in error.message
    assert hint in error.hint


def test_one_sample_is_told_as_one() -> None:
    full = OSError(errno.ENOSPC, "x")
    assert "1 sample is safe in it." in refused(Path("o"), full, 1).message
    assert "2 samples are safe in it." in refused(Path("o"), full, 2).message
    gone = refused(None, BrokenPipeError(), 1).message
    assert gone == "The reader of the output went away after 1 sample."


def test_outputs_that_can_not_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SantagenError, match=r"The folder .*no way of the output") as caught:
        open_writer(tmp_path / "no way" / "out.jsonl")
    assert "mkdir -p '" in caught.value.hint
    with pytest.raises(SantagenError, match="is a directory"):
        open_writer(tmp_path)
    with pytest.raises(SantagenError, match="File name too long") as caught:
        open_writer(tmp_path / ("x" * 250))
    assert "another -o" in caught.value.hint
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(SantagenError, match="Permission denied"):
        open_writer(tmp_path / "out.jsonl")


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path) as writer:
        path.write_text("somebody else's")
        with pytest.raises(SantagenError, match="File exists"):
            writer.write(sample(0, 0))
    assert path.read_text() == "somebody else's"


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    whole, link = tmp_path / "whole.jsonl", tmp_path / "link.jsonl"
    run(whole)
    (tmp_path / "data").mkdir()
    link.symlink_to(tmp_path / "data" / "real.jsonl")
    run(link, order=4)
    run(link, order=5, overwrite=True)
    assert link.is_symlink() and files(link) == files(whole)


def test_a_second_run_on_one_output_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_writer(path):
        for settings in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(SantagenError, match=r"Another run is writing .*out\.jsonl"):
                open_writer(path, **settings)
    open_writer(path).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["symbolic", "hard", "both"])
@pytest.mark.parametrize("existed", [True, False])
def test_a_second_run_by_another_name_is_refused(tmp_path: Path, kind: str, existed: bool) -> None:
    path, link, hard = (tmp_path / name for name in ("out.jsonl", "link.jsonl", "hard.jsonl"))
    if existed:
        run(path)
    with open_writer(path, overwrite=True) as writer:
        writer.write(sample(0, 0))
        if kind != "symbolic":
            os.link(path, hard)
        if kind != "hard":
            link.symlink_to(path if kind == "symbolic" else hard)
        before = path.read_bytes()
        for settings in ({"overwrite": True}, {"resume": True}):
            with pytest.raises(SantagenError, match="Another run is writing"):
                open_writer(hard if kind == "hard" else link, **settings)
        assert path.read_bytes() == before
        writer.write(sample(0, 1))
        writer.finish([(0, 0)], {})
    assert path.read_bytes().count(b"\n") == 2
    open_writer(hard if kind == "hard" else link, overwrite=True).close()  # nobody's any more


@pytest.mark.parametrize("unordered", [True, False])
@pytest.mark.parametrize("change", ["append", "truncate", "replace", "remove"])
def test_an_output_that_something_else_changed_is_no_success(
    tmp_path: Path, change: str, unordered: bool
) -> None:
    path, other = tmp_path / "out.jsonl", tmp_path / "other"
    with open_writer(path, unordered=unordered) as writer:
        for index in (1, 0):
            writer.write(sample(0, index))
        if change == "append":
            with path.open("ab") as file:
                file.write(b'{"torn')
        elif change == "truncate":
            os.truncate(path, 10)
        elif change == "replace":
            other.write_bytes(path.read_bytes())
            other.replace(path)
        else:
            path.unlink()
        with pytest.raises(SantagenError, match="changed by something else") as caught:
            writer.finish([(0, 0)], {})
    assert "--overwrite" in caught.value.hint
    manifest = read_manifest(path)
    assert manifest is not None and manifest["complete"] is False


def test_an_output_replaced_before_the_first_sample_is_left_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "out.jsonl", tmp_path / "other"
    run(path)
    other.write_text("somebody else's")
    with open_writer(path, overwrite=True) as writer:
        other.replace(path)
        with pytest.raises(SantagenError, match="changed by something else"):
            writer.write(sample(0, 0))
    assert path.read_text() == "somebody else's"


def test_the_lock_of_a_killed_run_and_one_just_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / "out.jsonl", tmp_path / "out.jsonl.lock"
    lock.touch()
    open_writer(path).close()
    flock, removals = fcntl.flock, [lock]

    def racing(fd: int, operation: int) -> None:
        flock(fd, operation)
        while removals:  # the holder before gave it up, name and all
            removals.pop().unlink()

    monkeypatch.setattr(fcntl, "flock", racing)
    with open_writer(path):
        assert lock.exists()
        with pytest.raises(SantagenError, match="Another run"):
            open_writer(path)


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    (tmp_path / "out.jsonl.tmp").write_text("half")
    (tmp_path / "out.jsonl.manifest.json.tmp").write_text("half")
    open_writer(path, resume=True).close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    run(tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl.lock").exists()


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, Path("-")])
def test_standard_output_gets_lines_as_they_end(
    path: Path | None, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_writer(path) as writer:
        writer.write(sample(2, 0))
        assert capfd.readouterr().out.count("\n") == 1
        writer.write(sample(0, 0))
        writer.finish([], {})
    assert '"task_id": 0' in capfd.readouterr().out
    print("still open")
    assert capfd.readouterr().out == "still open\n"


def test_standard_output_that_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer))
    with open_writer(None) as writer:
        writer.write(sample(0, 0))
        writer.finish([], {})
    assert buffer.getvalue().endswith(b"\n")


def test_a_reader_that_goes_away_ends_the_run_in_order() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with (
        open_writer(Path(f"/dev/fd/{write_end}")) as writer,
        pytest.raises(SantagenError, match="reader of the output went away"),
    ):
        writer.write(sample(0, 0))
    os.close(write_end)


def test_a_slow_reader_is_waited_for() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    line = b"x" * 300_000 + b"\n"
    got: list[bytes] = []

    def read() -> None:
        with os.fdopen(read_end, "rb") as file:
            got.extend(file)

    reader = threading.Timer(0.05, read)
    reader.start()
    write_all(write_end, line)
    os.close(write_end)
    reader.join()
    assert got == [line]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_device() -> None:
    with (
        open_writer(Path("/dev/full")) as writer,
        pytest.raises(SantagenError, match="No space left"),
    ):
        writer.write(sample(0, 0))


def test_a_named_pipe_gets_the_lines_and_no_neighbours(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    run(pipe)
    reader.join()
    assert got[0].count(b"\n") == 8
    assert list(tmp_path.iterdir()) == [pipe]
    with pytest.raises(SantagenError, match="can't be resumed"):
        open_writer(pipe, resume=True)


def test_the_name_of_an_open_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    with path.open("ab") as file, open_writer(Path(f"/dev/fd/{file.fileno()}")) as writer:
        writer.write(sample(0, 0))
        writer.finish([], {})
    assert path.read_text().startswith("before\n{")
    assert list(tmp_path.iterdir()) == [path]

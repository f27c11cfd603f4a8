"""A run that is stopped keeps what it has written, and the command it names finishes the job."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from tests.cli.helpers import PROGRAM, TIMEOUT, Cli, write_jsonl

ROWS = [{"id": f"row {n}", "prompt": f"def f{n}(x):"} for n in range(10)]
# One sequence at a time, and each to its limit: long enough to be stopped half way.
SLOW = ["--max-num-seqs", "1", "--max-tokens", "24", "--ignore-eos", "--stop", r"\tnever", "-q"]


def hear_hang_ups() -> None:
    """Also where the tests themselves run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def wait_for_lines(path: Path, count: int, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and child.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"the run never wrote {count} lines")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_keeps_the_rows_and_names_the_command(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    prompts = write_jsonl(tmp_path / "my prompts.jsonl", ROWS)
    output = tmp_path / "out.jsonl"
    command = ["generate", str(prompts), "-o", str(output), *SLOW]
    with subprocess.Popen(
        [*PROGRAM, *command], stderr=subprocess.PIPE, text=True, preexec_fn=hear_hang_ups
    ) as child:
        wait_for_lines(output, 2, child)
        child.send_signal(number)
        _, err = child.communicate(timeout=TIMEOUT)
    assert child.returncode == 130
    assert "Traceback" not in err
    found = re.search(r"Go on with: (santagen generate .* --resume)$", err, re.MULTILINE)
    assert found, err
    kept = output.read_text().count("\n")
    assert 2 <= kept < len(ROWS)

    resumed = cli(*shlex.split(found[1])[1:])
    assert resumed.code == 0, resumed.err
    whole = tmp_path / "whole.jsonl"
    assert cli(*command[:2], "-o", str(whole), *SLOW).code == 0
    assert output.read_bytes() == whole.read_bytes()


def test_a_reader_that_reads_no_more_can_be_left(tmp_path: Path) -> None:
    """Its pipe is full, so that the sample which is being written waits for ever."""
    prompts = write_jsonl(tmp_path / "p.jsonl", ROWS)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    command = [*PROGRAM, "generate", str(prompts), *SLOW, "-n", "20", "--temperature", "1"]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True) as child:
        os.close(writing)
        deadline, before = time.monotonic() + TIMEOUT, -1
        while time.monotonic() < deadline:
            waiting = struct.unpack("i", fcntl.ioctl(reading, termios.FIONREAD, bytes(4)))[0]
            if waiting and waiting == before:
                break
            before = waiting
            time.sleep(1)
        for _ in range(2):
            child.send_signal(signal.SIGINT)
            time.sleep(1.2)
        try:
            _, err = child.communicate(timeout=10)
        finally:
            child.kill()
            os.close(reading)
    assert child.returncode == 130 and err.count("interrupted") == 1, err

"""Whole runs under torchrun: two agents, the command that starts itself again, kills and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from santagen.io.parts import part_path, part_paths
from tests.cli.helpers import PROGRAM, TIMEOUT
from tests.distributed.conftest import NARROW, SAMPLED
from tests.distributed.processes import free_port, start

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def run(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def generate(prompts: Path, output: Path, *more: str) -> list[str]:
    return ["generate", str(prompts), "-o", str(output), *SAMPLED, *more]


def test_two_nodes_write_what_one_process_writes(
    prompts: Path, single: Path, output: Path
) -> None:
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}"]
    nodes = ["--nnodes", "2", "--nproc-per-node", "1", "--local-addr", "localhost"]
    what = generate(prompts, output, "-tp", "1", "-dp", "2", *NARROW)
    command = [*TORCHRUN, *nodes, *meet, "-m", "santagen", *what]
    agents = [run(command) for _ in range(2)]
    said = [agent.communicate(timeout=TIMEOUT)[1] for agent in agents]
    assert sorted(agent.returncode for agent in agents) == [1, 1], said  # two rows failed
    assert output.read_bytes() == single.read_bytes()
    assert not part_paths(output)
    assert "".join(said).count("2 rows failed") == 1


def test_the_command_starts_itself_again(prompts: Path, single: Path, output: Path) -> None:
    with run([*PROGRAM, *generate(prompts, output, "-dp", "2", *NARROW)]) as child:
        _, err = child.communicate(timeout=TIMEOUT)
    assert child.returncode == 1, err  # as without -dp: two rows failed
    assert output.read_bytes() == single.read_bytes()
    assert err.count("2 rows failed") == 1 and "Traceback" not in err


def test_it_passes_on_the_exit_code_and_the_one_message(prompts: Path, output: Path) -> None:
    with run([*PROGRAM, *generate(prompts, output, "-tp", "3")]) as child:
        _, err = child.communicate(timeout=TIMEOUT)
    assert child.returncode == 2
    lines = [line for line in err.splitlines() if not line.startswith(("warning:", "hint:"))]
    assert lines == ["error: The model's 4 attention heads can't be shared by -tp 3 ranks."]


def process_of(rank: int, launcher: int) -> int:
    """The pid of one rank under a launcher."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue  # it has ended, or is another user's
        if parent == launcher and f"RANK={rank}".encode() in variables:
            return int(folder.name)
    raise AssertionError(f"rank {rank} is not there")


def wait_for_part(output: Path, child: subprocess.Popen[str]) -> None:
    wait_for_lines(part_path(output, 1), child)


def wait_for_lines(path: Path, child: subprocess.Popen[str], lines: int = 3) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and child.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.005)
    raise AssertionError(f"{path.name} never had its lines")


def test_kill_9_and_a_resume_with_three(prompts: Path, single: Path, output: Path) -> None:
    with run([*PROGRAM, *generate(prompts, output, "-dp", "2", *NARROW)]) as child:
        wait_for_part(output, child)
        os.kill(process_of(1, child.pid), signal.SIGKILL)
        killed = time.monotonic()
        _, err = child.communicate(timeout=TIMEOUT)
    assert child.returncode == 2 and time.monotonic() - killed < 60
    assert err.count("error: ") == err.count("error: Rank 1 was ended by SIGKILL.") == 1
    assert len(re.findall("^Go on with: santagen generate .* --resume$", err, re.M)) == 1
    assert "Traceback" not in err
    assert part_paths(output)
    ran = start(3, *generate(prompts, output, *NARROW, "--resume"))
    assert ran.wait() == [1, 1, 1], ran.err
    assert output.read_bytes() == single.read_bytes()
    assert not part_paths(output)


def test_kill_9_of_a_shard_is_told_once(prompts: Path, output: Path) -> None:
    with run([*PROGRAM, *generate(prompts, output, "-tp", "2", *NARROW)]) as child:
        wait_for_lines(output, child)
        os.kill(process_of(1, child.pid), signal.SIGKILL)
        _, err = child.communicate(timeout=TIMEOUT)
    assert child.returncode == 2
    assert re.findall("^error: .*", err, re.M) == ["error: Rank 1 was ended by SIGKILL."], err
    assert err.count(f"safe in {output}.") == err.count("Go on with: santagen") == 1, err


def test_kill_9_of_the_launcher(prompts: Path, single: Path, output: Path) -> None:
    with run([*PROGRAM, *generate(prompts, output, "-dp", "2", *NARROW, "-q")]) as child:
        wait_for_part(output, child)
        child.kill()
        _, err = child.communicate(timeout=60)  # until the last process that it started has ended
    # Failed rows and the resume may be told too; nothing of the libraries is, though -q or not.
    known = ("error: ", "warning: ", "hint: ", "Go on with: ")
    assert all(line.startswith(known) for line in err.splitlines()), err
    assert err.count("error: ") == err.count("Go on with: ") == 1, err
    assert "tensor-parallel group" not in err
    ran = start(2, *generate(prompts, output, *NARROW, "--resume"))
    assert ran.wait() == [1, 1], ran.err
    assert output.read_bytes() == single.read_bytes()


def test_ctrl_c_ends_all_in_order(prompts: Path, output: Path) -> None:
    with run([*PROGRAM, *generate(prompts, output, "-dp", "2", *NARROW)]) as child:
        wait_for_part(output, child)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=TIMEOUT)
    assert child.returncode == 130, err
    assert "error: " not in err and "Traceback" not in err
    assert err.count("interrupted: ") == err.count("Go on with: santagen generate") == 1
    kept = [*part_paths(output), output]
    assert sum(path.read_bytes().count(b"\n") for path in kept) >= 3


def processes_with(mark: str) -> list[int]:
    """Living processes that have `mark` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


@pytest.mark.parametrize("sharing", ["-dp", "-tp"])
def test_ctrl_c_as_the_first_rank_is_started(prompts: Path, output: Path, sharing: str) -> None:
    """torch has not noted it yet."""
    mark = f"SPAWNED_BY={output}"
    child = subprocess.Popen(
        [*PROGRAM, *generate(prompts, output, sharing, "2")], stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True, env={**os.environ, "SPAWNED_BY": str(output)},
    )  # fmt: skip
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    try:
        while child.poll() is None and not children.read_text().strip():
            time.sleep(0.001)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=TIMEOUT)
        assert child.returncode == 130 and err.count("interrupted") == 1, err
        assert processes_with(mark) == []
    finally:
        for pid in processes_with(mark):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("heard", [True, False], ids=["terminal", "nohup"])
def test_a_closed_terminal(prompts: Path, single: Path, output: Path, heard: bool) -> None:
    """It tells the whole group. Under nohup nobody listens."""
    handler = signal.SIG_DFL if heard else signal.SIG_IGN
    with subprocess.Popen(
        [*PROGRAM, *generate(prompts, output, "-dp", "2", *NARROW)], stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, handler),  # type: ignore[arg-type]
    ) as child:  # fmt: skip
        wait_for_part(output, child)
        os.killpg(child.pid, signal.SIGHUP)
        _, err = child.communicate(timeout=TIMEOUT)
    assert "Traceback" not in err and "error: " not in err, err
    if heard:
        assert child.returncode == 130, err
        assert err.count("interrupted: ") == err.count("Go on with: santagen generate") == 1
    else:
        assert child.returncode == 1, err  # as without: two rows failed
        assert output.read_bytes() == single.read_bytes()


def wait_for_torch(child: subprocess.Popen[str]) -> None:
    """Until the process is about to load torch: it has numpy, and may be inside torch."""
    deadline = time.monotonic() + TIMEOUT
    while "_multiarray_umath" not in Path(f"/proc/{child.pid}/maps").read_text():
        assert time.monotonic() < deadline and child.poll() is None, "torch was never loaded"
        time.sleep(0.005)


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1.0, 2.0])
def test_ctrl_c_while_it_starts(prompts: Path, output: Path, seconds: float) -> None:
    """To the whole group, as a terminal sends it: one line, and an earlier output stays.

    Not before santagen runs: what a signal gets there is Python's to say.
    """
    output.write_text("of another run\n")
    command = [*PROGRAM, *generate(prompts, output, "-dp", "2", "--overwrite")]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        wait_for_torch(child)
        time.sleep(seconds)
        os.killpg(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Traceback" not in err and err.count("interrupted") == 1, err
    if "before the first sample" in err or err == "warning: interrupted.\n":
        assert output.read_text() == "of another run\n" and "--resume" not in err
    else:
        assert "safe in" in err and "--resume" in err

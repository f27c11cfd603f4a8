"""What goes wrong with several ranks: one sentence, once, nothing lost, nobody waits long."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.distributed.conftest import NARROW, SAMPLED
from tests.distributed.processes import Ranks, start


def said_once(ran: Ranks, text: str) -> None:
    assert len(re.findall("^error: ", ran.err, re.MULTILINE)) == 1, ran.err
    assert ran.err.count(text) == 1, ran.err
    assert "hint: " in ran.err
    assert "Traceback" not in ran.err


@pytest.fixture(scope="module")
def no_weights(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can't be loaded: what is refused with it is refused before its weights."""
    folder = tmp_path_factory.mktemp("model")
    for file in bundled_model.glob("*.json"):
        shutil.copy(file, folder)
    heads = json.loads((folder / "config.json").read_text())["n_head"]
    assert heads == 4
    return folder


@pytest.mark.parametrize(
    ("size", "flags", "sentence"),
    [
        (3, ("-tp", "3"), "The model's 4 attention heads can't be shared by -tp 3 ranks."),
        (5, ("-tp", "5"), "-tp 5 is more than the model's 4 attention heads."),
        (3, ("-tp", "2"), "-tp 2 times -dp 1 is 2, but 3 processes were started."),
        (2, ("-tp", "2", "-dp", "2"), "-tp 2 times -dp 2 is 4, but 2 processes were started."),
    ],
)
def test_sizes_that_do_not_fit(
    prompts: Path, no_weights: Path, output: Path, size: int, flags: tuple[str, ...], sentence: str
) -> None:
    ran = start(size, "generate", prompts, "-m", no_weights, "-o", output, "-q", *flags)
    assert ran.wait(60) == [2] * size
    said_once(ran, sentence)
    assert not output.exists()


def test_groups_need_an_output_file(prompts: Path, no_weights: Path) -> None:
    ran = start(2, "generate", prompts, "-m", no_weights, "-q")
    assert ran.wait(60) == [2, 2]
    said_once(ran, "-dp 2 needs an output file")


def test_unequal_nodes(prompts: Path, no_weights: Path, output: Path) -> None:
    changes = {0: {"LOCAL_WORLD_SIZE": "1"}, 1: {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"},
               2: {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}}  # fmt: skip
    command = ("generate", prompts, "-m", no_weights, "-o", output, "-q")
    ran = start(3, *command, changes=changes)
    assert ran.wait(60) == [2, 2, 2]
    said_once(ran, "The nodes run different numbers of processes (1, 2).")


def test_a_busy_port(prompts: Path, no_weights: Path, output: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = ("generate", prompts, "-m", no_weights, "-o", output, "-q")
        ran = start(2, *command, port=port, ranks=range(1))
        assert ran.wait(60) == [2]
    said_once(ran, f"Port {port} of 127.0.0.1, where the processes are to meet, is in use.")


def test_a_rank_that_never_comes(prompts: Path, no_weights: Path, output: Path) -> None:
    command = ("generate", prompts, "-m", no_weights, "-o", output, "-q")
    ran = start(2, *command, ranks=range(1), before={0: "little_patience"})
    assert ran.wait(60) == [2]
    said_once(ran, "Of 2 ranks, 1 did not start within 3 s (1).")


def test_the_first_all_reduce_hangs(prompts: Path, output: Path) -> None:
    before = {0: "quick_self_test", 1: "never_connects"}
    command = ("generate", prompts, "-o", output, "-tp", "2", "-q")
    ran = start(2, *command, before=before)
    started = time.monotonic()
    assert ran.wait(60) == [2, 2]
    assert time.monotonic() - started < 30
    said_once(ran, "The 2 ranks of a tensor-parallel group did not connect within 2 s.")
    assert "GLOO_SOCKET_IFNAME" in ran.err
    assert not output.exists()


@pytest.mark.parametrize("sizes", [("-tp", "2"), ("-dp", "2")])
def test_a_fault_on_one_rank_ends_all(prompts: Path, output: Path, sizes: tuple[str, str]) -> None:
    command = ("generate", prompts, "-o", output, *sizes, "-q")
    ran = start(2, *command, before={1: "broken_model"})
    assert ran.wait(60) == [2, 2]
    said_once(ran, "error: ZeroDivisionError: the model fell over")
    assert not output.exists()  # nothing is touched before every rank has its weights


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_device_of_one_rank_ends_all_and_keeps_the_rows(
    prompts: Path, single: Path, output: Path, rank: int
) -> None:
    command = ("generate", prompts, "-o", output, *SAMPLED, *NARROW)
    ran = start(2, *command, before={rank: "lost_device"})
    assert ran.wait(60) == [2, 2]
    said_once(ran, "can't use it any more (CUDA error: device-side assert triggered)")
    assert ran.err.count("Go on with: santagen generate") == 1 and "advice" not in ran.err
    ran = start(2, *command, "--resume")
    assert ran.wait() == [1, 1], ran.err
    assert output.read_bytes() == single.read_bytes()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_without_memory_goes_on_smaller_and_says_so(
    prompts: Path, single: Path, output: Path, rank: int
) -> None:
    command = ("generate", prompts, "-o", output, *SAMPLED, *NARROW)
    ran = start(2, *command, before={rank: "little_memory"})
    assert ran.wait() == [1, 1], ran.err
    assert ran.err.count("warning: The device ran out of memory with") == 1
    assert "UserWarning" not in ran.err and output.read_bytes() == single.read_bytes()


def test_a_full_disk_under_one_part(prompts: Path, output: Path) -> None:
    command = ("generate", prompts, "-o", output, *SAMPLED, *NARROW)
    ran = start(2, *command, before={1: "full_disk"})
    assert ran.wait(60) == [2, 2]
    said_once(ran, "Can't write")
    assert " safe in it." in ran.err
    assert ran.err.count("Go on with: santagen generate") == 1
    ran = start(1, *command, "--resume")
    assert ran.wait() == [1], ran.err


def test_a_shard_is_killed_in_a_step(prompts: Path, output: Path) -> None:
    command = ("generate", prompts, "-o", output, "--max-tokens", "8", "-tp", "2", "-q")
    ran = start(2, *command, before={1: "killed_in_a_step"})
    started = time.monotonic()
    codes = ran.wait(60)
    assert codes == [2, -signal.SIGKILL] and time.monotonic() - started < 60
    said_once(ran, "error: A rank of this tensor-parallel group went away")
    assert ran.err.count("Go on with: santagen generate") == 1


def test_a_silent_rank_is_missed(prompts: Path, output: Path) -> None:
    """Without torchrun's agent, only the watch can tell that a rank of another group is gone."""
    command = ("generate", prompts, "-o", output, "-dp", "2", "-q")
    before = {0: "short_silence", 1: "killed_while_loading"}
    ran = start(2, *command, before=before)
    assert ran.wait(60) == [2, -signal.SIGKILL]
    said_once(ran, "has not answered for 2 s")


@pytest.mark.parametrize("sizes", [("-tp", "2"), ("-dp", "2")])
def test_a_run_that_wrote_nothing_names_no_resume(
    prompts: Path, output: Path, sizes: tuple[str, str]
) -> None:
    output.write_text("of another run\n")
    command = ("generate", prompts, "-o", output, *sizes, "-q")
    ran = start(2, *command)
    assert ran.wait(60) == [2, 2]
    said_once(ran, f"error: {output} exists")
    assert "Go on with" not in ran.err
    ran = start(2, *command, "--overwrite", before={1: "broken_model"})
    assert ran.wait(60) == [2, 2]
    said_once(ran, "error: ZeroDivisionError: the model fell over")
    assert "Go on with" not in ran.err and output.read_text() == "of another run\n"


def test_a_device_is_nothing_to_go_on_with(prompts: Path) -> None:
    command = ("generate", prompts, "-o", "/dev/null", "--max-tokens", "8", "-tp", "2", "-q")
    ran = start(2, *command, before={1: "killed_in_a_step"})
    assert ran.wait(60) == [2, -signal.SIGKILL]
    said_once(ran, "error: A rank of this tensor-parallel group went away")
    assert "Go on with" not in ran.err and "safe in" not in ran.err


def test_a_stuck_rank_ends_the_run_with_a_word(prompts: Path, output: Path) -> None:
    """The main thread of rank 0 waits in a collective: only the watch's can speak."""
    command = ("generate", prompts, "-o", output, "--max-num-seqs", "2", "--ignore-eos", "-tp", "2")
    before = {0: "short_silence_and_grace", 1: "stopped_in_a_step"}
    ran = start(2, *command, before=before)
    for process in ran.processes:
        process.join(60)
    # the launcher would wait for it: one that is stopped hears no SIGTERM
    assert ran.processes[1].exitcode == -signal.SIGKILL
    assert ran.wait(10) == [2, -signal.SIGKILL]
    assert len(re.findall("^error: ", ran.err, re.MULTILINE)) == 1, ran.err
    assert ran.err.count("has not answered for 2 s") == 1
    samples = output.read_bytes().count(b"\n")
    assert samples and f"interrupted: {samples} of " in ran.err
    assert len(re.findall("^Go on with: santagen generate .* --resume$", ran.err, re.M)) == 1


@pytest.mark.parametrize("command", ["generate", "eval"])
def test_a_rank_beyond_the_world(prompts: Path, command: str) -> None:
    ran = start(2, command, prompts, "-q", ranks=range(1), changes={0: {"RANK": "3"}})
    ran.processes[0].join(60)
    assert ran.processes[0].exitcode == 2
    assert "error: RANK 3, WORLD_SIZE 2" in (ran.folder / "3.err").read_text()


def test_a_rank_that_hears_no_signal_ends_with_a_word(prompts: Path, output: Path) -> None:
    command = ("generate", prompts, "-o", output, "--max-num-seqs", "2", "--ignore-eos", "-tp", "2")
    ran = start(2, *command, before={0: "deaf_in_a_step"})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (output.exists() and output.stat().st_size):
        time.sleep(0.05)
    time.sleep(2)  # it is in that step by then
    ran.processes[1].kill()
    ran.processes[0].terminate()  # as a launcher does
    assert ran.wait(30) == [2, -signal.SIGKILL], ran.err
    assert re.findall("^error: (.*) rank 1 .* is gone.$", ran.err, re.M) == ["The run was stopped:"]
    samples = output.read_bytes().count(b"\n")
    assert samples and f"interrupted: {samples} of " in ran.err
    assert ran.err.count("Go on with: santagen generate") == 1

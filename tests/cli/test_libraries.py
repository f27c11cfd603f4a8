"""The libraries' own words on stderr: left out, but for who asks for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from santagen.cli.console import report_error
from santagen.cli.libraries import QUIET, quiet_libraries
from tests.cli.helpers import PROGRAM


def test_what_the_user_has_set_stays() -> None:
    name, other, *_ = QUIET
    environment = {name: "INFO"}
    quiet_libraries(environment)
    assert environment[name] == "INFO" and environment[other] == QUIET[other]


@pytest.mark.parametrize(("debug", "quiet"), [("", True), ("0", True), ("1", False)])
def test_debugging_shows_everything(debug: str, quiet: bool) -> None:
    environment = {"SANTAGEN_DEBUG": debug}
    quiet_libraries(environment)
    assert bool(set(QUIET) & set(environment)) is quiet


def test_the_program_sets_it_for_those_it_starts() -> None:
    code = (
        "import os, sys; from santagen.cli import app\n"
        "app._run = lambda arguments: print(*(os.environ.get(name) for name in arguments))\n"
        f"sys.argv[1:] = {list(QUIET)!r}\n"
        "app.main()"
    )
    environment = {name: value for name, value in os.environ.items() if name not in QUIET}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stdout.split() == list(QUIET.values()), done.stderr


def test_a_stack_of_the_library_is_no_part_of_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    report_error(RuntimeError("it broke\nException raised from f at g.cpp:1\nframe #0: h"))
    err = capfd.readouterr().err
    assert "RuntimeError: it broke\n" in err and "frame" not in err


def test_an_unreachable_hub_is_told_once_and_soon(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # closed by the time it is asked for
    environment = {
        **{name: value for name, value in os.environ.items() if name not in QUIET},
        "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    command = [*PROGRAM, "generate", "--dataset", "some/set", "-q"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=15, check=False
    )
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert first.startswith("error: The data set some/set can't be loaded: it is not cached, and ")
    assert second.startswith("hint: ")

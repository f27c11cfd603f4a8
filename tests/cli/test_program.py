"""The program as a whole: its help, how fast it answers, how a fault is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from santagen import __version__
from santagen.cli import app
from santagen.cli.options import GenerateOptions
from santagen.cli.settings import settings_of
from santagen.errors import SantagenError
from tests.cli.helpers import PROGRAM, Cli, process


def test_help_is_quick() -> None:
    def seconds() -> float:
        started = time.perf_counter()
        subprocess.run([*PROGRAM, "--help"], check=True, capture_output=True)
        return time.perf_counter() - started

    # It takes about 0.2 s; a busy machine is given some slack.
    assert min(seconds() for _ in range(5)) < 0.5


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"]])
def test_help_imports_nothing_slow(arguments: list[str]) -> None:
    code = (
        "import sys; from santagen.cli.app import run_program\n"
        f"assert run_program({arguments!r}) == 0\n"
        "slow = {'torch', 'numpy', 'rich.markdown', 'datasets', 'tokenizers', 'huggingface_hub'}\n"
        "print(slow & set(sys.modules), file=sys.stderr)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0
    assert child.stderr.strip() == "set()"


def test_help_shows_every_option_in_its_panel(cli: Cli) -> None:
    shown = cli.generate("--help").out
    for setting in settings_of(GenerateOptions):
        for flag in setting.flags:
            assert flag.split("/")[0] in shown
        assert f"\n{setting.panel}:\n" in shown


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"santagen {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["generate", "--no-such-option"], "--no-such-option"),
        (["generate", "--top-p"], "--top-p"),
        (["generate", "--top-p", "x"], "--top-p"),
        (["no-such-command"], "no-such-command"),
        (["generate"], "no prompts"),
        (["generate", "absent.jsonl"], "absent.jsonl"),
    ],
)
def test_usage_faults_end_with_2_and_a_hint(cli: Cli, arguments: list[str], word: str) -> None:
    ran = cli(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ") and word in ran.err
    assert ran.err.count("\nhint: ") == 1
    assert "Traceback" not in ran.err


def test_python_m_santagen_is_the_same_program() -> None:
    ran = process("generate", "absent.jsonl")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")


class TestFaults:
    """What a command raises, and what is said about it."""

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
        def fail(**_: object) -> None:
            raise request.param

        monkeypatch.setattr(app, "app", fail)

    @pytest.mark.parametrize("failing", [SantagenError("A.", "B.", 1)], indirect=True)
    def test_a_user_s_fault(self, cli: Cli, failing: None) -> None:
        assert cli() == (1, "", "error: A.\nhint: B.\n")

    @pytest.mark.parametrize("failing", [ValueError("one\ntwo")], indirect=True)
    def test_a_bug_is_one_line(self, cli: Cli, failing: None) -> None:
        code, _, err = cli()
        assert code == 2
        assert err.splitlines()[0] == "error: ValueError: one two"
        assert "SANTAGEN_DEBUG=1" in err and "Traceback" not in err

    @pytest.mark.parametrize("failing", [ValueError("x")], indirect=True)
    def test_debug_shows_the_traceback(
        self, cli: Cli, failing: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SANTAGEN_DEBUG", "1")
        assert "Traceback" in cli().err

    @pytest.mark.parametrize("failing", [KeyboardInterrupt()], indirect=True)
    def test_ctrl_c_before_anything_began(self, cli: Cli, failing: None) -> None:
        assert cli().code == 130


def test_a_closed_pipe_is_no_traceback(tmp_path: object) -> None:
    code = (
        "import santagen.cli.app as app, sys\n"
        "def flood(**_): \n"
        "    while True: print('x' * 1000)\n"
        "app.app = flood\n"
        "app.main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=30) == 2
    assert err.startswith("error: Standard output was closed") and "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_its_modules_are_loaded(number: signal.Signals) -> None:
    """A process of its own: it ends at once."""
    code = (
        "import os, sys\n"
        "class Interrupting:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'santagen.cli.app':\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Interrupting)\n"
        "from santagen.__main__ import main\n"
        "main()\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (child.returncode, child.stderr) == (130, "warning: interrupted.\n")


def test_ctrl_c_while_the_command_line_is_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("santagen.cli.commands.resolve", lambda *_: interrupt())
    ran = cli.generate("x.jsonl")
    assert (ran.code, ran.err) == (130, "warning: interrupted.\n")
    monkeypatch.setattr("typer.core.TyperGroup.parse_args", interrupt)
    ran = cli.generate("x.jsonl")
    assert (ran.code, ran.err) == (130, "warning: interrupted.\n")


def test_a_reader_that_has_gone_is_told() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*PROGRAM, "inspect", "--json"]
    child = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert child.returncode == 2
    assert "Standard output was closed" in child.stderr and "Traceback" not in child.stderr

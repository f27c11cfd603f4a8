"""Times 1, 2, 4 and 8 GPUs of one host against one: as many as it has.

    python -m tests.gpu.measure_scaling [--parts tensor data n200 kill] [--json FILE]
        [--gpus 8] [--requests 32768] [--forms float gptq] [--batches 1 64 1024]
        [--device cpu --tiny]

tensor   a decode step of the 15B shape, in bf16 and with packed GPTQ weights (4 bits, groups of
         128), by tensor-parallel size: milliseconds, tokens/s, share of the bound of step_bound.py
         with the sums as measured there, and greedy rows against those of one GPU
data     --requests (by default 4,096 a GPU) of 256 + 256 tokens on the 1.1B shape through
         `santagen generate -dp N`, and -tp 2 with half as many groups: tokens/s, share of N times
         one GPU's, the share of the run that each group was idle, and what the merge took
n200     164 prompts of 131 tokens, 200 samples of 256 each, on all GPUs: the whole command
kill     kill -9 of the last rank in the middle of `-dp N --invariant`: seconds until no process is
         left, then --resume with half as many ranks against an unkilled run, byte by byte; the same
         with `-tp N`, resumed alike

Each part can be run alone, prints a table, and adds what it found to --json as it finds it; what
earlier runs found in other parts stays there. A part that fails is told, the others go on, and the
status is 1. Weights are random: those of `tensor` are drawn on the device, the 1.1B model is
written to disk with a made-up tokenizer. With `--device cpu` ranks are processes of one thread that
meet through gloo, in float32 (`--gpus` of them, by default 2); `--tiny` takes shapes of two layers
and a few rows. Together they try the script out, and say nothing about speed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.gpu.decode_steps import compare
from tests.gpu.kill_rank import kill_in_the_middle
from tests.gpu.measure_parallel import BATCHES, FORMS
from tests.gpu.measure_table import SAMPLED, VOCAB, WORKS, Row, ids, rows, run, write
from tests.gpu.merge_clock import MergeClock
from tests.gpu.random_model import SANTACODER, add_tokenizer, write_random_model
from tests.gpu.scaling_table import (
    DIVISION_COLUMNS,
    STEP_COLUMNS,
    division_row,
    divisions,
    parallel_options,
    step_row,
    tensor_parallel_sizes,
)

BF16_NATS = 0.15  # what two orders of bf16 sums may move a log-probability by
FLOAT32_NATS = 1e-4
LIMIT_SECONDS = 60  # for all to end after a kill
KILLED_AT = 0.3  # of the bytes of the unkilled run
TINY = {"n_embd": 128, "n_head": 8, "n_layer": 2, "n_positions": 512}
PARTS = ("tensor", "data", "n200", "kill")


@dataclass
class Plan:
    """How much of everything is measured, and what has been found so far."""

    gpus: int
    requests: int
    forms: list[str]
    batches: list[int]
    cpu: bool
    tiny: bool
    folder: Path
    saved_in: Path | None = None
    results: dict[str, Any] = field(default_factory=dict)
    _model: Path | None = None

    @property
    def device_options(self) -> list[str]:
        return ["--device", "cpu"] if self.cpu else []

    def save(self, part: str, found: Any) -> None:
        """Keep what is known of a part so far."""
        self.results[part] = {"gpus": self.gpus, "device": device_name(self.cpu), "found": found}
        if self.saved_in:
            self.saved_in.write_text(json.dumps(self.results, indent=2))

    def model(self) -> Path:
        """The model of all parts but `tensor`, written when it is first asked for."""
        if self._model is None:
            shape = {**TINY, "vocab_size": VOCAB} if self.tiny else SANTACODER
            self._model = write_random_model(self.folder / "model", shape)
            add_tokenizer(self._model, VOCAB)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return self._model


def device_name(cpu: bool) -> str:
    return "cpu" if cpu else torch.cuda.get_device_name()


# -- tensor ------------------------------------------------------------------------------------


def tensor(plan: Plan) -> bool:
    found: dict[int, dict[str, Any]] = {}
    for size in tensor_parallel_sizes(plan.gpus):
        found[size] = steps_on(plan, size)
        plan.save("tensor", found)
    allowed = FLOAT32_NATS if plan.cpu else BF16_NATS
    good = True
    for form in plan.forms:
        every = {size: each["tensor"][form] for size, each in found.items()}
        good &= print_steps(form, every, allowed)
    print(f"rows are equal up to {allowed:g} nats")
    return good


def steps_on(plan: Plan, size: int) -> dict[str, Any]:
    """What measure_parallel says of `size` ranks that share one model."""
    result = plan.folder / f"tensor-{size}.json"
    shape = "starcoder"
    if plan.tiny:
        (plan.folder / "shape").mkdir(exist_ok=True)
        config = {"model_type": "gpt_bigcode", **TINY, "vocab_size": 1009}
        (plan.folder / "shape" / "config.json").write_text(json.dumps(config))
        shape = str(plan.folder / "shape")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(size), "-m", "tests.gpu.measure_parallel",
        "--parts", "sums", "tensor", "--shape", shape, "--json", str(result),
        "--forms", *plan.forms, "--batches", *map(str, plan.batches), *plan.device_options,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def print_steps(form: str, found: dict[int, dict[str, Any]], allowed: float) -> bool:
    """One line per batch and size; whether all sizes make the rows that one GPU makes."""
    columns = (*STEP_COLUMNS, "off by, nats", "rows part")
    print(f"\n{form:>6} {'rows':>6} {'TP':>3} " + " ".join(f"{name:>12}" for name in columns))
    good = True
    for number, one in enumerate(found[1]["steps"]):
        for size, each in found.items():
            step = each["steps"][number]
            error, parted = compare(found[1]["rows"], each["rows"])
            good &= error < allowed
            texts = step_row(one, step)
            same = ("" if error < allowed else "WRONG ") + f"{error:.1e}"
            line = " ".join(f"{text:>12}" for text in (*texts, same, str(parted)))
            print(f"{'':6} {step['batch']:6} {size:3} {line}", flush=True)
    return good


# -- data --------------------------------------------------------------------------------------


def data(plan: Plan) -> bool:
    prompt, new = (16, 8) if plan.tiny else (256, 256)
    prompts = plan.folder / "data.jsonl"
    write(prompts, rows(plan.requests, prompt, max_tokens=new, **SAMPLED)(random.Random(1)))
    found: list[dict[str, Any]] = []
    print(f"{plan.requests:,} requests of {prompt} + {new}")
    print(" ".join(f"{name:>10}" for name in (*DIVISION_COLUMNS, "idle, each group")))
    for sizes in divisions(plan.gpus):
        found.append(one_division(plan, prompts, sizes))
        plan.save("data", found)
        assert found[-1]["tokens"] == plan.requests * new
        print(" ".join(f"{text:>10}" for text in division_row(found[0], found[-1])), flush=True)
    return True


def one_division(plan: Plan, prompts: Path, sizes: tuple[int, int]) -> dict[str, Any]:
    model, output = plan.model(), prompts.with_suffix(".out.jsonl")
    output.unlink(missing_ok=True)
    with MergeClock(output) as clock:
        found = run(model, prompts, [*parallel_options(*sizes), *plan.device_options])
    told = json.loads(Path(f"{output}.manifest.json").read_text())["run"]
    return {
        **found,
        "tensor_parallel": sizes[0],
        "groups": sizes[1],
        "merge_seconds": clock.seconds,
        "samples_by_group": told.get("samples_by_group", [told["samples"]]),
        "seconds_by_group": told.get("seconds_by_group", [told["generation_seconds"]]),
    }


# -- n200 --------------------------------------------------------------------------------------


def n200(plan: Plan) -> bool:
    draw: Callable[[random.Random], list[Row]] = WORKS["n200"][1]
    if plan.tiny:
        draw = rows(4, 20, max_tokens=8, n=10, **SAMPLED)
    prompts = plan.folder / "n200.jsonl"
    write(prompts, draw(random.Random(1)))
    found = one_division(plan, prompts, (1, plan.gpus))
    plan.save("n200", found)
    print(
        f"{plan.gpus} GPUs: whole command {found['whole']:.1f} s; {found['tokens']:,} tokens in "
        f"{found['seconds']:.2f} s, {found['tokens'] / found['seconds']:,.0f} tok/s; merged in "
        f"{found['merge_seconds']:.2f} s"
    )
    return True


# -- kill --------------------------------------------------------------------------------------


def kill(plan: Plan) -> bool:
    """Rows of different lengths, so that some end all through the run."""
    found: list[dict[str, Any]] = []
    good = True
    for sizes, resumed in (
        ((1, plan.gpus), (1, max(1, plan.gpus // 2))),
        ((plan.gpus, 1), (plan.gpus, 1)),  # another -tp would give other bytes
    ):
        found.append(kill_one(plan, sizes, resumed))
        plan.save("kill", found)
        good &= found[-1]["good"]
    return good


def kill_one(plan: Plan, sizes: tuple[int, int], resumed: tuple[int, int]) -> dict[str, Any]:
    chance = random.Random(2)
    prompt, shortest, longest = (16, 8, 40) if plan.tiny else (256, 128, 384)
    made: list[Row] = [
        {"prompt_token_ids": ids(chance, prompt), "max_tokens": chance.randint(shortest, longest)}
        | SAMPLED
        for _ in range(plan.requests // (2 * sizes[0]))
    ]
    prompts = plan.folder / f"kill-{sizes[0]}.jsonl"
    write(prompts, made)
    options = ["--invariant", *plan.device_options]
    run(plan.model(), prompts, [*parallel_options(*sizes), *options])
    wanted = prompts.with_suffix(".out.jsonl").read_bytes()
    output = plan.folder / f"killed-{sizes[0]}.jsonl"
    command: list[str | Path] = [
        sys.executable, "-m", "santagen", "generate", prompts, "-m", plan.model(), "-o", output,
        "-q", "--ignore-eos", *options,
    ]  # fmt: skip
    written, rank = int(KILLED_AT * len(wanted)), plan.gpus - 1
    killed = kill_in_the_middle([*command, *parallel_options(*sizes)], output, written, rank)
    subprocess.run([*command, *parallel_options(*resumed), "--resume"], check=True)
    told = json.loads(Path(f"{output}.manifest.json").read_text())
    found = {
        "tensor_parallel": sizes[0], "groups": sizes[1], "seconds": killed.seconds,
        "exit_code": killed.exit_code, "processes_left": killed.left, "said": killed.errors,
        "resumed_with": resumed, "rows": len(made), "rows_resumed": told["run"]["samples"],
        "same_rows": samples_in(output.read_bytes()) == samples_in(wanted),
        "same_bytes": output.read_bytes() == wanted,
    }  # fmt: skip
    print(killed.errors.strip())
    print(
        f"rank {rank} of {plan.gpus} (TP {sizes[0]}, DP {sizes[1]}) killed: all ended after "
        f"{killed.seconds:.1f} s with exit code {killed.exit_code}, {killed.left} had to be killed"
    )
    print(
        f"resumed with TP {resumed[0]}, DP {resumed[1]}: {told['run']['samples']:,} of "
        f"{len(made):,} rows were left; rows {'as' if found['same_rows'] else 'NOT as'} those of "
        f"an unkilled run, bytes {'equal' if found['same_bytes'] else 'NOT equal'}"
    )
    ended = killed.seconds < LIMIT_SECONDS and not killed.left and killed.exit_code != 0
    found["good"] = bool(ended and found["same_rows"] and found["same_bytes"])
    return found


def samples_in(lines: bytes) -> list[tuple[Any, int, int]]:
    """(row, index, tokens) of each sample, in the file's order."""
    every = map(json.loads, lines.splitlines())
    return [(s["task_id"], s["index"], s["usage"]["completion_tokens"]) for s in every]


# ----------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--gpus", type=int, help="by default all of the host; 2 on the CPU")
    parser.add_argument("--requests", type=int, help="of `data`, and half as many of `kill`")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--batches", nargs="+", type=int, help="of `tensor`")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try this out")
    given = parser.parse_args()
    cpu = given.device == "cpu"
    if cpu:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    gpus = given.gpus or (2 if cpu else torch.cuda.device_count())
    each = 32 if given.tiny else 4096
    batches = given.batches or ([1, 8] if given.tiny else list(BATCHES))
    good = True
    with tempfile.TemporaryDirectory(prefix="santagen-scaling-") as folder:
        plan = Plan(
            gpus, given.requests or each * gpus, given.forms, batches, cpu, given.tiny,
            Path(folder), given.json,
        )  # fmt: skip
        if given.json and given.json.exists():
            plan.results = json.loads(given.json.read_text())
        for part in given.parts:
            good &= measure(part, plan)
    return 0 if good else 1


def measure(part: str, plan: Plan) -> bool:
    """One part; whether it ended well and found what it should."""
    measures = {"tensor": tensor, "data": data, "n200": n200, "kill": kill}
    print(f"\n== {part}", flush=True)
    start = time.perf_counter()
    try:
        good = measures[part](plan)
    except (subprocess.CalledProcessError, RuntimeError, AssertionError, OSError) as error:
        print(f"{part} failed: {error!r}")
        good = False
    told = "" if good else ", NOT as it should be"
    print(f"{part} took {time.perf_counter() - start:.0f} s{told}", flush=True)
    return good


if __name__ == "__main__":
    raise SystemExit(main())

"""Times the speed table on one GPU through the command itself: `santagen generate`.

    python -m tests.gpu.measure_table [--work plain greedy nat few one n200 mixed] [--repeat 2]
        [-- further options of generate]

Random bf16 weights of SantaCoder's shape with a made-up tokenizer, so that text, stop strings and
the writer cost what they cost; rows are `prompt_token_ids`, without a common prefix, and each
process is a new one. The rate is the tokens counted from the output file over the manifest's
`generation_seconds`: from the first prompt handed to the engine to the last row written.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu.random_model import SANTACODER, add_tokenizer, write_random_model

Row = dict[str, Any]
VOCAB = SANTACODER["vocab_size"]
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
NEVER = ["\0never\0one", "\0never\0two", "\0never\0three", "\0never\0four"]


def rows(count: int, prompt: int, **fields: Any) -> Callable[[random.Random], list[Row]]:
    def draw(chance: random.Random) -> list[Row]:
        return [{"prompt_token_ids": ids(chance, prompt), **fields} for _ in range(count)]

    return draw


def mixed(chance: random.Random) -> list[Row]:
    """Lengths uniform in 64 to 448, four stop strings, every row with its own settings."""
    found = []
    for number in range(4096):
        row: Row = {"prompt_token_ids": ids(chance, chance.randint(64, 448)), "stop": NEVER}
        row["max_tokens"] = chance.randint(64, 448)
        row["temperature"] = chance.choice([0.0, 0.5, 0.8, 1.0, 1.2])
        row["seed"] = number % 7
        if row["temperature"]:
            row["top_p"] = chance.choice([0.8, 0.9, 0.95, 1.0])
            row["top_k"] = chance.choice([0, 0, 40, 1000])
            row["min_p"] = chance.choice([0.0, 0.0, 0.05])
        found.append(row)
    return found


def ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(300, VOCAB) for _ in range(count)]


WORKS: dict[str, tuple[str, Callable[[random.Random], list[Row]]]] = {
    "plain": ("random", rows(4096, 256, max_tokens=256, **SAMPLED)),
    "greedy": ("random", rows(4096, 256, max_tokens=256)),
    "nat": ("peaked", rows(4096, 256, max_tokens=256, **SAMPLED)),
    "few": ("random", rows(64, 128, max_tokens=128, **SAMPLED)),
    "one": ("random", rows(1, 128, max_tokens=256)),
    "n200": ("random", rows(164, 131, max_tokens=256, n=200, **SAMPLED)),
    "mixed": ("random", mixed),
}


def run(model: Path, prompts: Path, options: list[str]) -> dict[str, Any]:
    """One process; the manifest's timing, with `whole` seconds and the file's own `tokens`."""
    out = prompts.with_suffix(".out.jsonl")
    command = [sys.executable, "-m", "santagen", "generate", "-q", "--overwrite", "--ignore-eos"]
    start = time.perf_counter()
    subprocess.run([*command, "-m", model, "-o", out, *options, "--", prompts], check=True)
    whole = time.perf_counter() - start
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    samples = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(samples) == manifest["run"]["samples"]
    tokens = sum(sample["usage"]["completion_tokens"] for sample in samples)
    return {"whole": whole, "tokens": tokens, "seconds": manifest["run"]["generation_seconds"]}


def entropy(model: Path, folder: Path) -> float:
    """Mean of -log p over tokens sampled at temperature 1: what the model's entropy is, in nats."""
    prompts = folder / "entropy.jsonl"
    write(prompts, rows(64, 256, max_tokens=32, temperature=1.0)(random.Random(0)))
    run(model, prompts, ["--logprobs", "1"])
    values = [
        token["logprob"]
        for line in prompts.with_suffix(".out.jsonl").read_text(encoding="utf-8").splitlines()
        for token in json.loads(line)["logprobs"]
    ]
    return -sum(values) / len(values)


def write(path: Path, found: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--logit-scale", type=float, default=11.0, help="of the peaked model")
    parser.add_argument("options", nargs="*", help="further options of generate, after --")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="santagen-table-"))
    scales = {"random": 1.0, "peaked": given.logit_scale}
    models: dict[str, Path] = {}
    for name in dict.fromkeys(WORKS[work][0] for work in given.work):
        models[name] = write_random_model(folder / name, SANTACODER, logit_scale=scales[name])
        add_tokenizer(models[name], VOCAB)
        print(f"{name}: entropy {entropy(models[name], folder):.2f} nats", flush=True)
    for work in given.work:
        model, draw = WORKS[work]
        for repeat in range(given.repeat):
            prompts = folder / f"{work}.jsonl"
            write(prompts, draw(random.Random(repeat + 1)))
            found = run(models[model], prompts, given.options)
            rate = found["tokens"] / found["seconds"]
            print(
                f"{work:8} {found['tokens']:10,} tokens {found['seconds']:7.2f} s "
                f"{rate:9,.0f} tok/s; whole command {found['whole']:6.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()

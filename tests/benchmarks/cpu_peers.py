"""Times santagen against transformers and CTranslate2 on the CPU, on HumanEval's prompts, in one
run.

    python -m tests.benchmarks.cpu_peers HumanEval.jsonl.gz [--threads 2] [--repeat 2]

Bundled model, float32, greedy, no end token: 128 tokens each, then max_tokens spread over 16 to
256. Peers run fixed batches of rows sorted by length, at each batch size given; their best counts.
Each tool runs in a process of its own, and no run of santagen finds a prompt of an earlier one in
its cache. Not a test: it asserts nothing, it prints.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

# isort: off
import santagen as package  # before torch, whose libraries' settings it makes
import torch

# isort: on
from tokenizers import Tokenizer

from santagen import SamplingParams
from santagen.llm import LLM
from santagen.request import Request

Work = list[tuple[list[int], int]]  # (prompt ids, new tokens)


def santagen_runner(model: str | None) -> Callable[[Work], float]:
    llm = LLM(model, device="cpu")

    def run(work: Work) -> float:
        requests = (
            Request(i, i, tuple(ids), SamplingParams(max_tokens=new, ignore_eos=True))
            for i, (ids, new) in enumerate(work)
        )
        llm.engine.scheduler.blocks.clear()  # of the earlier run's prompts
        start = time.perf_counter()
        count = sum(output.generated_tokens for output in llm.run(requests))
        elapsed = time.perf_counter() - start
        assert count == sum(new for _, new in work)
        return elapsed

    return run


def transformers_runner(path: Path, batch: int) -> Callable[[Work], float]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def run(work: Work) -> float:
        ordered = sorted(work, key=lambda item: (len(item[0]) + item[1], len(item[0])))
        start = time.perf_counter()
        for first in range(0, len(ordered), batch):
            part = ordered[first : first + batch]
            width = max(len(ids) for ids, _ in part)
            padded = torch.tensor([[0] * (width - len(ids)) + ids for ids, _ in part])
            mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _ in part])
            with torch.inference_mode():
                model.generate(
                    padded,
                    attention_mask=mask,
                    max_new_tokens=max(new for _, new in part),
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=0,
                )
        return time.perf_counter() - start

    return run


def ctranslate2_runner(path: Path, batch: int, threads: int) -> Callable[[Work], float]:
    import ctranslate2

    folder = Path(tempfile.mkdtemp()) / "ct2"
    converter = ctranslate2.converters.TransformersConverter(str(path))
    converter.convert(str(folder), quantization="float32")
    generator = ctranslate2.Generator(
        str(folder), device="cpu", compute_type="float32", intra_threads=threads, inter_threads=1
    )
    vocabulary = json.loads((folder / "vocabulary.json").read_text())

    def run(work: Work) -> float:
        ordered = sorted(work, key=lambda item: (len(item[0]) + item[1], len(item[0])))
        start = time.perf_counter()
        for first in range(0, len(ordered), batch):
            part = ordered[first : first + batch]
            new = max(n for _, n in part)
            generator.generate_batch(
                [[vocabulary[i] for i in ids] for ids, _ in part],
                max_length=new,
                min_length=new,
                sampling_topk=1,
                include_prompt_in_result=False,
                end_token=[],
            )
        return time.perf_counter() - start

    return run


def measure(label: str, batch: int, work: Work, threads: int, repeat: int) -> list[float]:
    """Seconds of each repeat of one tool, in this process alone; 8 rows warm it up."""
    torch.set_num_threads(threads)
    path = Path(package.__file__).parent / "assets"
    if label == "santagen":
        run = santagen_runner(None)
    elif label == "transformers":
        run = transformers_runner(path, batch)
    else:
        run = ctranslate2_runner(path, batch, threads)
    run(work[:8])
    return [run(work) for _ in range(repeat)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="*", default=[32, 64])
    arguments = parser.parse_args()
    opener = gzip.open if arguments.problems.suffix == ".gz" else open
    with opener(arguments.problems, "rt", encoding="utf-8") as file:
        prompts = [json.loads(line)["prompt"] for line in file]
    tokenizer = Tokenizer.from_file(str(Path(package.__file__).parent / "assets/tokenizer.json"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in prompts]
    works: dict[str, Work] = {
        "128 tokens each": [(row, 128) for row in ids],
        "16 to 256 tokens": [(row, 16 + (i * 97) % 241) for i, row in enumerate(ids)],
    }
    peers = [(tool, b) for b in arguments.batches for tool in ("transformers", "ctranslate2")]
    for name, work in works.items():
        tokens = sum(new for _, new in work)
        print(
            f"{name}: {len(work)} rows, {sum(len(r) for r, _ in work):,} prompt tokens, "
            f"{tokens:,} new"
        )
        found: dict[str, float] = {}
        for tool, batch in [("santagen", 0), *peers]:
            settings = (tool, batch, work, arguments.threads, arguments.repeat)
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                times = process.submit(measure, *settings).result()
            rates = [tokens / seconds for seconds in times]
            label = f"{tool}, batch {batch}, sorted" if batch else tool
            found[label] = statistics.median(rates)
            spread = f"({min(rates):,.0f} to {max(rates):,.0f})"
            print(f"  {label:36} {found[label]:8,.0f} tok/s   {spread}", flush=True)
        own = found.pop("santagen")
        print(f"  santagen / best peer = {own / max(found.values()):.2f}")


if __name__ == "__main__":
    main()

"""Times whole runs of the engine on one GPU, with random weights of SantaCoder's shape.

    python -m tests.gpu.measure [--work 512x128+128 ...] [--attention auto] [--max-num-seqs 1024]

A work is REQUESTSxPROMPT+NEW[@TEMPERATURE]. The clock runs from the first request handed over to
the last sample; loading and graph capture are printed apart. Every row runs to its full length.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path

import torch

from santagen import SamplingParams
from santagen.llm import LLM
from santagen.request import Request
from tests.gpu.random_model import SANTACODER, STARCODER, write_random_model


def requests(
    count: int, prompt: int, new: int, temperature: float, vocab: int, n: int, seed: int = 1
) -> list[Request]:
    """Distinct random prompts, others for each seed; top_p 0.95 where sampled."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (count, prompt), generator=generator).tolist()
    params = SamplingParams(
        max_tokens=new,
        temperature=temperature,
        top_p=0.95 if temperature else 1.0,
        n=n,
        ignore_eos=True,
    )
    return [Request(i, i, tuple(row), params, tuple(range(n))) for i, row in enumerate(ids)]


def run(llm: LLM, work: list[Request]) -> tuple[float, int]:
    start = time.perf_counter()
    count = sum(output.generated_tokens for output in llm.run(work))
    return time.perf_counter() - start, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", nargs="+", default=["512x128+128@0.8"])
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--shape", default="santacoder", choices=["santacoder", "starcoder"])
    parser.add_argument("--max-num-seqs", type=int, default=1024)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--invariant", action="store_true")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    shape = SANTACODER if arguments.shape == "santacoder" else STARCODER
    path = arguments.model or Path(tempfile.gettempdir()) / f"random-{arguments.shape}"
    if not (path / "config.json").exists():
        write_random_model(path, shape)
    start = time.perf_counter()
    llm = LLM(
        str(path),
        attention=arguments.attention,
        max_num_seqs=arguments.max_num_seqs,
        block_size=arguments.block_size,
        enforce_eager=arguments.eager,
        quantization=arguments.quantization,
        invariant=arguments.invariant,
    )
    torch.cuda.synchronize()
    print("; ".join(llm.describe()), f"; ready in {time.perf_counter() - start:.1f} s", flush=True)
    vocab = json.loads((path / "config.json").read_text())["vocab_size"]
    run(llm, requests(8, 64, 8, 0.8, vocab, 1))
    for text in arguments.work:
        match = re.fullmatch(r"(\d+)(?:n(\d+))?x(\d+)\+(\d+)(?:@([\d.]+))?", text)
        assert match, text
        count, n, prompt, new = int(match[1]), int(match[2] or 1), int(match[3]), int(match[4])
        for number in range(arguments.repeat):  # new prompts: cached prefixes would help
            work = requests(count, prompt, new, float(match[5] or 0), vocab, n, number + 2)
            seconds, tokens = run(llm, work)
            print(
                f"{text:24} {tokens:9,} tokens {seconds:8.2f} s {tokens / seconds:10,.0f} tok/s",
                flush=True,
            )
    print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB; {llm.engine.stats}")


if __name__ == "__main__":
    main()

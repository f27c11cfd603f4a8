"""Mean loss of models on HumanEval's canonical solutions, each given its prompt.

    python -m tests.benchmarks.solution_loss HumanEval.jsonl.gz [MODEL[:QUANTIZATION] ...]
        [--device auto]

Nats a token over the solutions' tokens, the difference to the first model, and the share of tokens
that both models like best. No MODEL is the bundled one. Not a test: it asserts nothing, it prints.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

# isort: off
from santagen.llm import LLM  # before torch, whose libraries' settings the package makes
import torch

# isort: on
from santagen.model.attention import Seqlen


@torch.inference_mode()
def logprobs(llm: LLM, ids: list[int]) -> torch.Tensor:
    """[n - 1, V]: the model's log-probabilities of what follows each token but the last."""
    runner, device = llm.engine.runner, llm.device
    count, size = len(ids) - 1, runner.shape.block_size
    place = torch.arange(count, device=device)
    blocks = torch.arange(1, count // size + 2, device=device)
    bounds = torch.tensor([0, count], dtype=torch.int32, device=device)
    seqlen = Seqlen(bounds[1:], bounds[:1], bounds, bounds, max_q=count, has_prefix=False)
    slots = blocks[place // size] * size + place % size
    tokens = torch.tensor(ids[:-1], device=device)
    table = blocks.int().unsqueeze(0)
    logits, _ = runner.model(
        tokens, place, bounds, runner.layers, table, slots, seqlen, count
    )
    return torch.log_softmax(logits, dim=-1)


def score(name: str, texts: list[tuple[str, str]], device: str) -> tuple[torch.Tensor, ...]:
    """(loss of each solution's tokens, the likeliest token of each place) of one model."""
    model, _, quantization = name.partition(":")
    llm = LLM(model or None, device=device, quantization=quantization or "auto", max_num_seqs=1)
    assert llm.tokenizer is not None
    losses, best = [], []
    for prompt, solution in texts:
        start = len(llm.tokenizer.encode(prompt))
        ids = llm.tokenizer.encode(prompt) + llm.tokenizer.encode(solution)
        ids = ids[: llm.plan.max_model_len]
        found = logprobs(llm, list(ids))[start - 1 :]
        wanted = torch.tensor(ids[start:], device=found.device).unsqueeze(1)
        losses.append(-found.gather(1, wanted).squeeze(1).cpu())
        best.append(found.argmax(1).cpu())
    return torch.cat(losses), torch.cat(best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", type=Path)
    parser.add_argument("models", nargs="*", default=[""])
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    opener = gzip.open if given.problems.suffix == ".gz" else open
    with opener(given.problems, "rt", encoding="utf-8") as file:
        texts = [(p["prompt"], p["canonical_solution"]) for p in map(json.loads, file)]
    first = None
    for name in given.models:
        losses, best = score(name, texts, given.device)
        first = first or (losses.mean(), best)
        same = float((best == first[1]).float().mean())
        print(
            f"{name or 'bundled':40} {losses.mean():.4f} nats a token over {len(losses):,} tokens "
            f"({losses.mean() - first[0]:+.4f}), same best token {same:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()

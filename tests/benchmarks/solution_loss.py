"""Mean loss of models on HumanEval's canonical solutions, each given its prompt.

    python -m tests.benchmarks.solution_loss HumanEval.jsonl.gz [MODEL[:QUANTIZATION] ...]
        [--device auto]

Nats a token over the solutions' tokens, the difference to the first model, and the share of tokens
that both models like best. Every text is cut where the shortest model's positions end, so that all
models are asked for the same tokens. No MODEL (or an empty one) is the bundled one; a quantised one
that came without a tokenizer needs the first one's files beside it. Not a test: it prints.
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


def open_model(name: str, device: str) -> LLM:
    """The model of MODEL[:QUANTIZATION]."""
    model, _, quantization = name.partition(":")
    return LLM(model or None, device=device, quantization=quantization or "auto", max_num_seqs=1)


Encoded = list[tuple[list[int], int]]


def encode(llm: LLM, texts: list[tuple[str, str]]) -> Encoded:
    """(ids of a prompt and its solution, how many are the prompt's) of each problem."""
    assert llm.tokenizer is not None
    found = []
    for prompt, solution in texts:
        ids = llm.tokenizer.encode(prompt)
        found.append(([*ids, *llm.tokenizer.encode(solution)], len(ids)))
    return found


def score(llm: LLM, encoded: Encoded, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss of each solution's tokens, the likeliest token of each place) of one model, of at most
    `limit` tokens a text."""
    losses, best = [], []
    for whole, start in encoded:
        ids = whole[:limit]
        if len(ids) <= start:
            continue  # the prompt alone takes all the positions
        found = logprobs(llm, ids)[start - 1 :]
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
    # One model is in memory at a time, so each is opened twice.
    limit = min(open_model(name, given.device).plan.max_model_len for name in given.models)
    encoded = encode(open_model(given.models[0], given.device), texts)
    count = sum(len(ids) - start for ids, start in encoded)
    first = None
    print(f"the first {limit:,} tokens of each text, {count:,} of the solutions in all")
    for name in given.models:
        llm = open_model(name, given.device)
        if encode(llm, texts) != encoded:
            raise SystemExit(f"{name} has another tokenizer than {given.models[0] or 'bundled'}")
        losses, best = score(llm, encoded, limit)
        del llm
        first = first or (losses.mean(), best)
        same = float((best == first[1]).float().mean())
        print(
            f"{name or 'bundled':40} {losses.mean():.4f} nats a token over {len(losses):,} tokens "
            f"({losses.mean() - first[0]:+.4f}), same best token {same:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Decode steps padded to a multiple of rows, as CUDA graphs pad them, without a GPU."""

from __future__ import annotations

from torch import Tensor

from santagen.llm import LLM


class PaddedGraphs:
    """What the runner asks of engine.cuda_graph.DecodeGraphs; the extra rows are finished ones."""

    def __init__(self, llm: LLM, multiple: int) -> None:
        self._forward = llm.engine.runner.decode_logits
        self._longest, self._multiple = llm.plan.max_model_len, multiple
        self.padded: list[int] = []  # the sizes that were launched

    def rung(self, size: int) -> int:
        return -(-size // self._multiple) * self._multiple

    def logits(self, rung: int) -> Tensor:
        self.padded.append(rung)
        return self._forward(rung, self._longest)

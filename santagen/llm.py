"""From a model's name to a running engine: resolves, loads, sizes the cache, and offers it to
Python.

    llm = LLM("bigcode/santacoder", dtype="bfloat16")
    samples = llm.generate(["def fib(n):"], SamplingParams(temperature=0.8, top_p=0.95, n=4))

The command line drives the same class. Prompt files and output files are not its business.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from santagen.checkpoint.gptq_choice import Machine, choose
from santagen.checkpoint.random_weights import RandomModel, RandomWeights
from santagen.checkpoint.source import ModelSource, resolve_model
from santagen.checkpoint.weights import Weights, open_weights
from santagen.config import EngineConfig
from santagen.distributed import TensorParallel
from santagen.engine.block_manager import BlockManager
from santagen.engine.llm_engine import LLMEngine
from santagen.engine.memory import (
    DEFAULT_ROWS,
    CachePlan,
    available_ram,
    plan_cache,
    refuse_too_large,
)
from santagen.engine.model_runner import ModelRunner
from santagen.engine.output_processor import OutputProcessor
from santagen.engine.resolve import choose_device, choose_dtype, load_tokenizer, model_config
from santagen.engine.rows import RowTable
from santagen.engine.sampler import Sampler
from santagen.engine.scheduler import Scheduler, SchedulerLimits
from santagen.engine.warm_up import load_kernels, rehearse
from santagen.errors import SantagenError, is_out_of_memory
from santagen.io.requests import RequestBuilder
from santagen.model.attention import AttentionBackend, select_attention
from santagen.model.fp8 import quantize_model
from santagen.model.gpt_bigcode import FlashSantacoderForCausalLM
from santagen.model.layers import make_invariant
from santagen.request import PromptRow, Request, RowFailure, SampleOutput, SamplingParams


class LLM:
    """A loaded model with its engine.

    `model` is a hub id or a directory, None for the bundled one, or a ModelSource that is found
    already; the other keywords are those of EngineConfig (dtype, device, attention, max_num_seqs,
    max_model_len, ...). Raises SantagenError where the checkpoint, the settings or the machine
    don't fit together.

    With `parallel` this is one rank's shard: every rank of the group must be given the same
    requests in the same order. `sharing` processes load a model on this machine.
    """

    def __init__(
        self,
        model: str | ModelSource | None = None,
        *,
        parallel: TensorParallel | None = None,
        sharing: int = 1,
        **settings: Any,
    ) -> None:
        self.parallel, self._sharing = parallel or TensorParallel(), sharing
        name = model.name if isinstance(model, ModelSource) else model
        config = self.engine_config = EngineConfig(model=name, **settings)
        self.source = (
            model
            if isinstance(model, ModelSource)
            else resolve_model(model, revision=config.revision, token=config.hf_token)
        )
        self.config = model_config(self.source)
        self.device = choose_device(config.device)
        self.dtype, self._dtype_note = choose_dtype(config.dtype, self.config, self.device)
        self.tokenizer = load_tokenizer(config, self.source, self.config)
        self._build()

    def _build(self) -> None:
        settings, config, device = self.engine_config, self.config, self.device
        attention = select_attention(
            settings.attention, device, self.dtype, config, settings.block_size, settings.invariant
        )
        own = self.parallel
        shard: dict[str, Any] = {
            "rank": own.rank, "world_size": own.world_size, "process_group": own.group
        }  # fmt: skip
        if isinstance(self.source, RandomModel):
            weights: Weights = RandomWeights(config, dtype=self.dtype, device=device, **shard)
        else:
            weights = open_weights(
                self.source.path, config, dtype=self.dtype, device=device, **shard
            )
        weights.packed, packing = self._choose_packing(weights)
        if device.type == "cpu" and not weights.packed:
            refuse_too_large(self.source.name, config, self.dtype, own.world_size)
        with torch.inference_mode():
            model = FlashSantacoderForCausalLM("", config, weights, attention.backend, own).eval()
        if settings.invariant and device.type == "cuda":
            make_invariant(model)
        if settings.quantization == "fp8":
            quantize_model(model)
        if weights.packed and device.type == "cuda":
            torch.cuda.empty_cache()  # what packing borrowed, several layers' worth
        self.notes = [attention.reason, *([self._dtype_note] if self._dtype_note else [])]
        if settings.quantization == "fp8":
            packing = "quantization fp8: float8 products, with a scale a row"
        self.notes += [*([packing] if packing else []), *weights.notes]
        end_ids = frozenset(config.eos_token_ids)
        known = None
        if self.tokenizer is not None:
            end_ids |= frozenset(self.tokenizer.end_ids)
            known = self.tokenizer.known_ids_mask(config.vocab_size)
        runner = self._runner(model, known, end_ids)
        plan = self.plan
        scheduler = Scheduler(
            SchedulerLimits(
                plan.max_num_seqs,
                plan.max_num_batched_tokens,
                dense_blocks=model.attention.reads_in_place,
            ),
            BlockManager(plan.shape.num_blocks, plan.shape.block_size),
        )
        eos = tuple(config.eos_token_ids) or (
            tuple(self.tokenizer.eos_ids) if self.tokenizer is not None else ()
        )
        self.engine = LLMEngine(
            runner,
            scheduler,
            OutputProcessor(self.tokenizer, eos, tuple(end_ids)),
            self.tokenizer,
            plan.max_model_len,
            run_ahead=1 if device.type == "cuda" else 0,
        )

    def _runner(
        self, model: FlashSantacoderForCausalLM, known: np.ndarray | None, end_ids: frozenset[int]
    ) -> ModelRunner:
        """The cache, the rows and the captured steps; where there is no memory for them, of half
        as many rows."""
        rows = self.engine_config.max_num_seqs
        while True:
            self.plan = plan = self._plan(model.attention, rows)
            self.max_model_len, rows = plan.max_model_len, plan.max_num_seqs
            try:
                return self._runner_of(plan, model, known, end_ids)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if rows == 1 or self.parallel.world_size > 1:
                    raise SantagenError(
                        f"The device has no memory for a cache and {rows:,} sequences beside the "
                        f"model ({str(error).splitlines()[0]}).",
                        "Lower --max-num-seqs or --gpu-memory-utilization, or free the device of "
                        "other work.",
                    ) from error
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.notes.append(
                f"no memory for {rows:,} sequences at once: going on with {rows // 2:,}"
            )
            rows //= 2

    def _runner_of(
        self,
        plan: CachePlan,
        model: FlashSantacoderForCausalLM,
        known: np.ndarray | None,
        end_ids: frozenset[int],
    ) -> ModelRunner:
        rows, blocks_a_row = plan.max_num_seqs, -(-plan.max_model_len // plan.shape.block_size)
        table = RowTable(rows, blocks_a_row, self.device)
        sampler = Sampler(self.config.vocab_size, known, end_ids, rows, self.device)
        runner = ModelRunner(model, plan.shape, table, sampler)
        if self.device.type == "cuda":
            load_kernels(runner, plan.max_model_len)
        if not self.engine_config.enforce_eager:
            runner.capture(plan.max_model_len)
        if self.device.type == "cuda":
            rehearse(runner, plan.max_num_batched_tokens, plan.max_model_len)
        return runner

    def _plan(self, attention: AttentionBackend, rows: int | None) -> CachePlan:
        """The cache's sizes, the same on every rank: the schedule follows from them."""
        ranks = self.parallel.world_size
        asked = dataclasses.replace(self.engine_config, max_num_seqs=rows)

        def plan(settings: EngineConfig) -> CachePlan:
            return plan_cache(
                settings, self.config, attention, self.dtype, self.device, ranks, self._sharing
            )

        own = plan(asked)
        if ranks == 1:
            return own
        least = (own.shape.num_blocks, own.max_num_seqs, own.max_num_batched_tokens)
        blocks, rows, tokens = map(self.parallel.smallest, least)
        return plan(
            dataclasses.replace(
                asked, num_blocks=blocks, max_num_seqs=rows, max_num_batched_tokens=tokens
            )
        )

    def _choose_packing(self, weights: Weights) -> tuple[bool, str]:
        """Whether GPTQ weights stay packed, and a note on why ("" for a model that has none)."""
        settings, device = self.engine_config, self.device
        if device.type == "cuda":
            memory = int(torch.cuda.mem_get_info(device)[0] * settings.gpu_memory_utilization)
        else:
            memory = available_ram()
        memory = self.parallel.smallest(memory)  # every rank must choose alike
        rows = settings.max_num_seqs or DEFAULT_ROWS[device.type]
        machine = Machine(device.type, memory, rows, self.dtype.itemsize, weights.world_size)
        asked = settings.quantization
        if asked == "fp8" and settings.invariant:
            raise SantagenError(
                "--invariant can't be had with --quantization fp8, whose products follow the "
                "number of rows.",
                "Leave out one of the two.",
            )
        if settings.invariant and weights.quantization is not None and device.type == "cuda":
            if asked == "gptq":
                raise SantagenError(
                    "--invariant can't be had with --quantization gptq: the packed products of few "
                    "rows and of many differ by rounding.",
                    "Leave out one of the two; --quantization none dequantises at load.",
                )
            asked = "none"
        choice = choose(asked, weights.quantization, self.config, machine)
        return choice.packed, choice.note

    def describe(self) -> list[str]:
        """What is in force, a line each: model, device and dtype, attention and why, cache."""
        name = "the bundled tiny model" if self.source.bundled else self.source.name
        shape = self.plan.shape
        size = self.plan.cache_bytes / 2**30
        return [
            f"model {name} on {self.device.type}, {str(self.dtype).removeprefix('torch.')}",
            *self.notes,
            f"cache {shape.num_blocks:,} blocks of {shape.block_size} tokens ({size:.2f} GiB), "
            f"up to {self.plan.max_num_seqs:,} sequences of {self.max_model_len:,} tokens",
        ]

    def generate(
        self,
        prompts: Iterable[str | Sequence[int] | tuple[str, str]],
        params: SamplingParams | None = None,
        *,
        fim_mode: str = "psm",
        truncate: str = "error",
    ) -> list[SampleOutput]:
        """All samples of all prompts, in input order (n per prompt).

        A prompt is a text, a list of token ids, or a (prefix, suffix) pair to infill. A prompt
        that can't be used raises SantagenError.
        """
        outputs: list[SampleOutput] = []
        results = self.stream(prompts, params, fim_mode=fim_mode, truncate=truncate)
        with contextlib.closing(results):
            for result in results:
                if isinstance(result, RowFailure):
                    raise SantagenError(f"Prompt {result.row_id}: {result.error}", result.hint)
                outputs.append(result)
        return sorted(outputs, key=lambda output: (output.request.number, output.index))

    def stream(
        self,
        prompts: Iterable[str | Sequence[int] | tuple[str, str]],
        params: SamplingParams | None = None,
        *,
        fim_mode: str = "psm",
        truncate: str = "error",
    ) -> Generator[SampleOutput | RowFailure, None, None]:
        """As `generate`, each sample as soon as it ends; a bad prompt comes as a RowFailure."""
        builder = self.request_builder(params or SamplingParams(), fim_mode, truncate)
        rows = (_prompt_row(number, prompt) for number, prompt in enumerate(prompts))
        yield from self.engine.run(builder.build_many(rows))

    def request_builder(
        self, defaults: SamplingParams, fim_mode: str = "psm", truncate: str = "error"
    ) -> RequestBuilder:
        """What turns prompt rows into requests for this model."""
        return RequestBuilder(
            self.tokenizer,
            vocab_size=self.config.vocab_size,
            max_len=self.max_model_len,
            defaults=defaults,
            fim_mode=fim_mode,
            truncate=truncate,
        )

    def run(self, requests: Iterable[Request | RowFailure]) -> Iterator[SampleOutput | RowFailure]:
        """Generate for requests that are already tokenised."""
        return self.engine.run(requests)


def _prompt_row(number: int, prompt: str | Sequence[int] | tuple[str, str]) -> PromptRow:
    place: dict[str, Any] = {"row_id": number, "number": number, "line": 0, "source": "prompts"}
    if isinstance(prompt, str):
        return PromptRow(**place, prompt=prompt)
    if len(prompt) == 2 and all(isinstance(part, str) for part in prompt):
        return PromptRow(**place, prefix=str(prompt[0]), suffix=str(prompt[1]))
    return PromptRow(**place, prompt_token_ids=tuple(int(i) for i in prompt))

"""Times cases through the real engine, prefill and decode apart.

A repeat is two runs of LLM.run over the same number of rows, each with prompts never used before:

    short   max_tokens 1              every prompt is computed, every row draws its first token
    long    max_tokens = output_len   the same, then output_len - 1 decode steps

    prefill = short                   decode step = (long - short) / decode steps of the long run

So a decode step's time is the mean over the run, scheduling, sampling and reading the tokens
included. The clock runs from the first request handed over to the last sample, between two
synchronisations of the device; loading and graph capture are outside it. Warm-up runs are whole
repeats. Prints nothing and writes nothing.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable

import torch

from santagen.bench.cases import Case, Prompts, Repeat, Result, Timed
from santagen.bench.probes import PeakMemory, synchronize
from santagen.errors import SantagenError, is_out_of_memory
from santagen.kernels.packed_linear import storage_key
from santagen.llm import LLM
from santagen.model.gpt_bigcode import FlashSantacoderForCausalLM
from santagen.request import Request, SamplingParams

MAX_DISTURBED = 5  # repeats of a case in which the short run took longer: measured again


def bytes_read(model: FlashSantacoderForCausalLM) -> int:
    """Weight bytes that a decode step must read: all but tables of which it looks up rows."""
    tensors = {storage_key(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    decoder, head = model.transformer, model.lm_head.linear.weight
    looked_up = {storage_key(decoder.wpe.weight), storage_key(decoder.wte.weight)}
    looked_up.discard(storage_key(head))
    return sum(tensor.nbytes for key, tensor in tensors.items() if key not in looked_up)


class Bench:
    """Measures cases on one model. `load` makes the engine, and makes it anew after a failure."""

    def __init__(
        self, load: Callable[[], LLM], *, temperature: float, top_p: float, repeat: int, warmup: int
    ) -> None:
        self._load = load
        self.params = SamplingParams(temperature=temperature, top_p=top_p, ignore_eos=True)
        self.repeat, self.warmup = repeat, warmup
        self._llm: LLM | None = None
        self._prompts: Prompts | None = None

    @property
    def llm(self) -> LLM:
        """The engine, loaded when it is first needed."""
        if self._llm is None:
            try:
                self._llm = self._load()
            except Exception as error:
                if not out_of_memory(error):
                    raise
                raise SantagenError(
                    "The model does not fit the device's memory.",
                    "Use a smaller dtype, or a device with more memory.",
                ) from error
        return self._llm

    def measure(self, case: Case) -> Result:
        """Warm up and repeat; what is in the way of a case is told in its result."""
        result = Result(case)
        try:
            result.error = self._obstacle(case)
            if result.error is None:
                self._fill(result)
            return result
        except Exception as error:
            if not (isinstance(error, SantagenError) or out_of_memory(error)):
                raise
            told = error.message if isinstance(error, SantagenError) else "out of memory"
        self._drop()  # out of the handler, whose traceback holds on to what ran
        return Result(case, error=told)

    def _obstacle(self, case: Case) -> str | None:
        """Why the rows of this case can't run together."""
        plan, shape = self.llm.plan, self.llm.plan.shape
        if case.batch_size > plan.max_num_seqs:
            return f"{case.batch_size} rows are more than --max-num-seqs {plan.max_num_seqs}"
        if case.length > plan.max_model_len:
            return f"{case.length} tokens are more than --max-model-len {plan.max_model_len}"
        needed = case.batch_size * -(-case.length // shape.block_size)
        if needed > shape.num_blocks - 1:
            return (
                f"out of memory: {needed:,} blocks of KV cache are needed, and there is room for "
                f"{shape.num_blocks - 1:,}"
            )
        return None

    def _fill(self, result: Result) -> None:
        case, llm = result.case, self.llm
        if self._prompts is None:
            self._prompts = Prompts(llm.config.vocab_size)
        peak = PeakMemory(llm.device)
        peak.reset()
        for _ in range(self.warmup):
            self._repeat(case)
        disturbed = 0
        while len(result.repeats) < self.repeat:
            found = self._repeat(case)
            if found.decode_seconds > 0:
                result.repeats.append(found)
                continue
            disturbed += 1
            if disturbed > MAX_DISTURBED:
                result.repeats.clear()
                result.error = "too short to tell decode from prefill: raise --output-len"
                return
        result.peak_memory_bytes = peak.bytes()

    def _repeat(self, case: Case) -> Repeat:
        return Repeat(self._timed(case, 1), self._timed(case, case.output_len))

    def _timed(self, case: Case, max_tokens: int) -> Timed:
        assert self._prompts is not None
        params = dataclasses.replace(self.params, max_tokens=max_tokens)
        return run_timed(self.llm, self._prompts.requests(case, params))

    def _drop(self) -> None:
        """Let go of an engine whose rows may be half done, and of its memory."""
        self._llm = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def run_timed(llm: LLM, requests: list[Request]) -> Timed:
    """Run them all; the seconds end when the device is idle again."""
    before = dataclasses.asdict(llm.engine.stats)
    synchronize(llm.device)
    started = time.perf_counter()
    for _ in llm.run(requests):
        pass
    synchronize(llm.device)
    seconds = time.perf_counter() - started
    after = dataclasses.asdict(llm.engine.stats)
    counted = [field.name for field in dataclasses.fields(Timed) if field.name != "seconds"]
    return Timed(seconds, **{name: after[name] - before[name] for name in counted})


def out_of_memory(error: BaseException) -> bool:
    """Whether the device or the machine had no memory left."""
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)

"""The loop: requests in, finished samples out.

    host:    schedule k+1 | launch k+1 | read tokens of k | stops, text | schedule k+2 ...
    device:        step k            |            step k+1             |           step k+2

With `run_ahead` 1 (CUDA) the host looks at a launch's tokens after the next one is on its way;
with 0 (CPU, where nothing runs beside the host) at once. Both give the same samples.

Requests are drawn a few at a time after each launch (engine.request_feed), so that reading and
tokenising them costs no time of the device; so are samples handed out that ended together. Samples
come as they end: who needs them in input order sorts them. Reads no files and writes none.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from santagen.engine.batch import Step
from santagen.engine.lost_device import outlive_frees
from santagen.engine.model_runner import ModelRunner, Record
from santagen.engine.output_processor import Ending, OutputProcessor
from santagen.engine.request_feed import RequestFeed
from santagen.engine.scheduler import Scheduler
from santagen.engine.sequence import Sequence
from santagen.errors import SantagenError, first_line, is_out_of_memory
from santagen.io.stops import StopSet, TokenIndex
from santagen.io.tokenizer import Tokenizer
from santagen.random_key import row_key
from santagen.request import Request, RowFailure, SampleOutput

LEAST_WINDOW = 1024  # samples
WINDOWS_AHEAD = 4  # of max_num_seqs samples
DRAWN_A_LAUNCH = 32  # samples, at least
GIVEN_A_LAUNCH = 128  # samples, or a quarter of those that ended if that is more


@dataclass
class EngineStats:
    """Running totals of one engine. Tokens are counted when the host reads them."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    samples: int = 0
    rows: int = 0
    running: int = 0
    waiting: int = 0
    prefills: int = 0
    decodes: int = 0
    cached_tokens: int = 0
    preemptions: int = 0


class LLMEngine:
    """See the module's contract. `max_len` bounds prompt + output of every sample."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        processor: OutputProcessor,
        tokenizer: Tokenizer | None,
        max_len: int,
        run_ahead: int,
    ) -> None:
        self.runner, self.scheduler, self.processor = runner, scheduler, processor
        self.tokenizer, self.max_len, self.run_ahead = tokenizer, max_len, run_ahead
        rows = scheduler.limits.max_num_seqs
        self.window = max(WINDOWS_AHEAD * rows, LEAST_WINDOW)  # samples that wait at most
        self.stats = EngineStats()
        self.on_shrink: Callable[[str], None] = warnings.warn  # told where a run goes on smaller
        self._stop_sets: dict[tuple[str, ...], StopSet] = {}
        self._token_index: TokenIndex | None = None  # made for the first stop set, shared by all
        self._ended: deque[Ending] = deque()  # not handed out yet
        self._run_number = 0
        if runner.device.type == "cuda":
            outlive_frees()

    def run(self, requests: Iterable[Request | RowFailure]) -> Iterator[SampleOutput | RowFailure]:
        """Generate for all requests; yields samples as they finish, failures as they come by.

        Requests are drawn as rows become free, so a generator of millions is fine. What ended
        before an error or an interrupt is yielded before it is raised. A run that is given up
        leaves nothing behind; one that is begun ends an earlier one.
        """
        self._run_number += 1
        number = self._run_number
        if self._ended or not self.scheduler.idle:
            self._forget()
        try:
            for failure in self._run(requests):
                if failure is not None:
                    yield failure
                    self._check_current(number)
                for _ in range(self._given()):
                    yield self.processor.output(self._ended.popleft())
                    self._check_current(number)
            yield from self.drain()
        except (Exception, KeyboardInterrupt):
            if number == self._run_number:
                yield from self.drain()
            raise

    def _given(self) -> int:
        """How many samples are handed out after a launch. What takes the reader time is spread over
        launches while the device works; what waits stays within a few launches' endings."""
        ended = len(self._ended)
        if self.run_ahead == 0:
            return ended  # nothing runs beside
        return min(ended, max(GIVEN_A_LAUNCH, -(-ended // 4)))

    def _check_current(self, number: int) -> None:
        if number != self._run_number:
            raise SantagenError(
                "This run has been ended by another one on the same model.",
                "Read one run to its end before the next, or load the model twice.",
            )

    def drain(self) -> Iterator[SampleOutput]:
        """The samples that ended and have not been handed out: what an interrupt of who reads a
        run must not lose."""
        while self._ended:
            yield self.processor.output(self._ended.popleft())

    def _forget(self) -> None:
        """Be as if nothing had run: also what a row that was not finite left in the cache."""
        self._ended.clear()
        self.scheduler.forget()
        self.runner.clear_cache()

    def _run(self, requests: Iterable[Request | RowFailure]) -> Iterator[RowFailure | None]:
        """The loop: yields None after each launch, and failures among the requests."""
        feed = RequestFeed(requests, self.scheduler.blocks.block_size)
        pending: deque[Record] = deque()
        while True:
            # The launch waits for no more requests than it can use.
            while self.scheduler.short(self.window) and (feed.more or feed.samples):
                if not feed.samples:
                    yield from feed.draw(1)
                for request in feed.hand_over():
                    self._add(request)
            step = self.scheduler.schedule()
            if step is not None:
                try:
                    pending.append(self.runner.launch(step))
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    while pending:
                        self._collect(pending.popleft())
                    self._shrink(step, error)
                    continue
                room = self.window - self.scheduler.waiting.samples - feed.samples
                if room > 0:
                    yield from feed.draw(min(room, DRAWN_A_LAUNCH))
                while len(pending) > self.run_ahead:
                    self._collect(pending.popleft())
                yield None
                continue
            if pending:
                while pending:
                    self._collect(pending.popleft())
                yield None
                continue
            if self.scheduler.needs_drain:
                self.scheduler.preempt()
                continue
            assert self.scheduler.idle, "the scheduler has work but launches nothing"
            if not feed.more:
                return

    def _add(self, request: Request) -> None:
        params = request.params
        limit = min(params.max_tokens, self.max_len - len(request.prompt_token_ids))
        assert limit > 0, "requests are checked against max_len when they are made"
        stop = self._stop_set(params.stop)
        self.stats.rows += 1
        self.stats.prompt_tokens += len(request.prompt_token_ids)
        for index in request.sample_indices:
            key = row_key(params.seed, request.row_id, index)
            self.scheduler.add(Sequence(request, index, key, limit, stop))

    def _stop_set(self, stops: tuple[str, ...]) -> StopSet | None:
        if not stops or self.tokenizer is None:
            return None
        if self._token_index is None:
            self._token_index = TokenIndex(self.tokenizer.token_bytes)
        if stops not in self._stop_sets:
            self._stop_sets[stops] = StopSet(stops, self._token_index)
        return self._stop_sets[stops]

    def _shrink(self, step: Step, error: RuntimeError) -> None:
        """Go on with smaller launches after one found no memory; give up on the smallest."""
        smallest = step.size == 1 and len(step.prefill) <= 1
        if smallest or self.runner.model.transformer.parallel.world_size > 1:
            raise SantagenError(
                f"The device has no memory left for {step.size:,} sequences at once "
                f"({first_line(error)}).",
                "Lower --max-num-seqs, --max-num-batched-tokens or --gpu-memory-utilization, or "
                "free the device of other work.",
            ) from error
        self.scheduler.take_back(step)
        self.runner.release_memory()
        limits = self.scheduler.limits
        self.on_shrink(
            f"The device ran out of memory with {step.size:,} sequences: going on with up to "
            f"{limits.max_num_seqs:,} at once, and {limits.max_num_batched_tokens:,} prompt tokens "
            "a launch."
        )

    def _collect(self, record: Record) -> None:
        """Read one launch and retire what ended."""
        counts, stats = self.scheduler.counts, self.stats
        for ending in self.processor.process(record.step, *record.read()):
            self.scheduler.finish(ending.sequence)
            self._ended.append(ending)
            stats.samples += 1
        stats.generated_tokens = self.processor.tokens
        stats.prefills, stats.decodes = counts.prefills, counts.decodes
        stats.cached_tokens, stats.preemptions = counts.cached_tokens, counts.preemptions
        stats.running, stats.waiting = self.scheduler.running, self.scheduler.waiting.samples

"""The scheduler under random arrivals, lengths, forks, early ends and preemptions: nothing lost,
nothing doubled."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from santagen.engine.batch import Step
from santagen.engine.block_manager import BlockManager
from santagen.engine.scheduler import Scheduler, SchedulerLimits
from santagen.engine.sequence import Sequence
from santagen.request import Request, SamplingParams


class FakeDevice:
    """Keeps what the device would: which sequence sits in which row, from moves and admissions
    alone."""

    def __init__(self, rows: int) -> None:
        self.rows: list[Sequence | None] = [None] * rows

    def launch(self, step: Step) -> None:
        old = list(self.rows)
        for source, target in step.moves:
            self.rows[target] = old[source]
        for row in step.vacated:
            self.rows[row] = None
        fresh = {sequence.row for item in step.prefill for sequence in item.samples}
        assert not fresh & set(step.vacated), "a row would be written twice in one scatter"
        for item in step.prefill:
            for sequence in item.samples:
                self.rows[sequence.row] = sequence
        if not step.is_prefill:
            assert self.rows[: step.size] == step.sequences
        assert all(row is None for row in self.rows[step.size :])


def drive(
    prompts: list[tuple[tuple[int, ...], int, int]],
    rows: int,
    blocks: int,
    block_size: int,
    seed: int,
    ahead: int,
) -> tuple[dict[tuple[int, int], list[int]], Scheduler]:
    """Run (prompt, n, limit) jobs; token = its position, an end drawn by chance. Returns the
    outputs."""
    chance = random.Random(seed)
    manager = BlockManager(blocks, block_size)
    scheduler = Scheduler(SchedulerLimits(rows, 64), manager)
    device = FakeDevice(rows)
    everything: list[Sequence] = []
    for number, (tokens, n, limit) in enumerate(prompts):
        params = SamplingParams(n=n, temperature=1.0, max_tokens=limit)
        request = Request(number, number, tokens, params, tuple(range(n)))
        everything += [Sequence(request, i, (0, 0), limit) for i in range(n)]
    ends = {id(s): chance.randint(1, s.limit) for s in everything}
    arrivals = deque(everything)
    pending: deque[Step] = deque()
    outputs: dict[tuple[int, int], list[int]] = {}

    def read(step: Step) -> None:
        for i, sequence in enumerate(step.sequences):
            if sequence.finished:
                continue
            sequence.output.append(len(sequence.tokens))
            if len(sequence.output) == ends[id(sequence)] or step.last[i]:
                sequence.finished = True
                key = (sequence.request.number, sequence.index)
                assert key not in outputs
                outputs[key] = sequence.output
                scheduler.finish(sequence)

    for _ in range(5000):
        for _ in range(chance.randint(0, 3)):
            if arrivals:
                scheduler.add(arrivals.popleft())
        step = scheduler.schedule()
        scheduler.check_integrity()
        if step is not None:
            device.launch(step)
            for item in step.prefill:
                assert 0 <= item.cached < len(item.tokens)
                assert len(item.blocks) == -(-len(item.tokens) // block_size)
            pending.append(step)
            while len(pending) > ahead:
                read(pending.popleft())
        elif pending:
            while pending:
                read(pending.popleft())
        elif scheduler.needs_drain:
            scheduler.preempt()
        elif not arrivals and scheduler.idle:
            break
    else:
        pytest.fail("the scheduler does not come to an end")
    assert len(outputs) == len(everything)
    for sequence in everything:
        assert len(sequence.output) == min(ends[id(sequence)], sequence.limit)
    scheduler.schedule()
    scheduler.check_integrity()
    assert manager.available == blocks - 1
    return outputs, scheduler


# Shrinking a run that never ends takes minutes; the failing example itself is small enough to read.
NO_SHRINK = (Phase.explicit, Phase.generate)

jobs = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=20).map(tuple),
        st.integers(1, 5),
        st.integers(1, 14),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None, derandomize=True, phases=NO_SHRINK)
@given(
    jobs,
    st.integers(1, 9),
    st.integers(0, 8),
    st.sampled_from([1, 4, 8]),
    st.integers(0, 9999),
    st.integers(0, 2),
)
def test_nothing_is_lost_or_doubled(
    prompts: list[tuple[tuple[int, ...], int, int]],
    rows: int,
    spare: int,
    block_size: int,
    seed: int,
    ahead: int,
) -> None:
    longest = max(len(tokens) + limit for tokens, _, limit in prompts)
    blocks = 1 + -(-longest // block_size) + spare
    drive(prompts, rows, blocks, block_size, seed, ahead)


def test_a_prompt_is_prefilled_once_for_all_its_samples_and_twins() -> None:
    prompt = tuple(range(10))
    jobs = [(prompt, 6, 5), (prompt, 3, 5)]
    _, scheduler = drive(jobs, rows=4, blocks=200, block_size=4, seed=1, ahead=1)
    # ten tokens once; a later admission computes the last token alone, or what no whole block holds
    assert scheduler.counts.prefill_tokens <= 10 + 2 * scheduler.counts.prefills
    assert scheduler.counts.preemptions == 0


def test_common_prefixes_share_whole_blocks() -> None:
    manager = BlockManager(20, 4)
    first = [manager.allocate() for _ in range(3)]
    manager.register_prefix(list(range(10)), first)
    assert manager.match_prefix(list(range(9))) == first[:2]
    assert manager.match_prefix(list(range(8))) == first[:1]  # one token is always computed
    assert manager.match_prefix([*range(4), 9, 9, 9, 9, 1]) == first[:1]
    manager.release(first)
    assert manager.available == 19  # cached blocks count as free
    assert manager.match_prefix(list(range(9))) == first[:2]
    taken = [manager.allocate() for _ in range(19)]
    assert manager.match_prefix(list(range(9))) == []
    manager.release(taken)
    manager.check_integrity([])


def test_small_caches_do_not_thrash() -> None:
    jobs = [(tuple(range(i, i + 12)), 1, 40) for i in range(40)]
    _, scheduler = drive(jobs, rows=32, blocks=41, block_size=4, seed=2, ahead=0)
    assert scheduler.counts.preemptions <= 40


def test_all_rows_are_filled_before_decoding_goes_on() -> None:
    # three prompts a prefill: the sixteenth row is free alone, and is not left for the next round
    scheduler = Scheduler(SchedulerLimits(16, 64), BlockManager(400, 4))
    for number in range(20):
        tokens = tuple(range(100 * number, 100 * number + 20))
        request = Request(number, number, tokens, SamplingParams(max_tokens=8), (0,))
        scheduler.add(Sequence(request, 0, (0, 0), 8))
    steps = [scheduler.schedule() for _ in range(7)]
    assert [step.is_prefill for step in steps if step is not None] == [True] * 6 + [False]
    assert steps[5] is not None and steps[5].size == 16
    assert scheduler.waiting_samples == 4

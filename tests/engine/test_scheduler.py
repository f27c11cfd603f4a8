"""The scheduler under random arrivals, lengths, forks, early ends and preemptions: nothing lost,
nothing doubled."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from santagen.engine.batch import PrefillItem, Step
from santagen.engine.block_manager import BlockManager
from santagen.engine.scheduler import Scheduler, SchedulerLimits
from santagen.engine.sequence import Sequence
from santagen.request import Request, SamplingParams


class FakeDevice:
    """Keeps what the device would, from moves and admissions alone: which sequence sits in which
    row, its block table, and what stands in each place of the cache."""

    def __init__(self, rows: int, blocks: BlockManager) -> None:
        self.rows: list[Sequence | None] = [None] * rows
        self.tables: list[list[int]] = [[] for _ in range(rows)]
        self.positions = [0] * rows
        self.size = blocks.block_size
        self.cache = [[-1] * self.size for _ in range(blocks.num_blocks)]

    def launch(self, step: Step) -> None:
        for kept in (self.rows, self.tables, self.positions):
            old: list[Any] = list(kept)
            for source, target in step.moves:
                kept[target] = old[source]
        self.tables = [list(table) for table in self.tables]
        for row in step.vacated:
            self.rows[row] = None
        fresh = {sequence.row for item in step.prefill for sequence in item.samples}
        assert not fresh & set(step.vacated), "a row would be written twice in one scatter"
        contents = [list(block) for block in self.cache]
        for source, target in step.block_moves:
            self.cache[target] = contents[source]
        for row, column, block in step.new_blocks:
            table = self.tables[row]
            table[column:] = [block, *table[column + 1 :]]
        for item in step.prefill:
            self._prefill(item)
        if not step.is_prefill:
            assert self.rows[: step.size] == step.sequences
            self._decode(step.size)
        assert all(row is None for row in self.rows[step.size :])

    def _prefill(self, item: PrefillItem) -> None:
        written = len(item.tokens) - item.keep_last
        for place in range(item.cached, written):
            self.cache[item.blocks[place // self.size]][place % self.size] = item.tokens[place]
        for source, target in item.copies:
            self.cache[target] = list(self.cache[source])
        for sequence in item.samples:
            row = sequence.row
            self.rows[row], self.tables[row] = sequence, list(sequence.table)
            self.positions[row] = len(item.tokens) - 1
            self._check(row)

    def _decode(self, size: int) -> None:
        """Every row writes the token it was given last, whose number is its place."""
        for row in range(size):
            self.positions[row] += 1
            place = self.positions[row]
            self.cache[self.tables[row][place // self.size]][place % self.size] = place
        for row in range(size):
            self._check(row)

    def _check(self, row: int) -> None:
        sequence = self.rows[row]
        assert sequence is not None
        prompt, last = sequence.request.prompt_token_ids, self.positions[row]
        wanted = [*prompt, *range(len(prompt), last + 1)][: last + 1]
        blocks = self.tables[row]
        found = [self.cache[blocks[p // self.size]][p % self.size] for p in range(last + 1)]
        assert found == wanted


def drive(
    prompts: list[tuple[tuple[int, ...], int, int]],
    rows: int,
    blocks: int,
    block_size: int,
    seed: int,
    ahead: int,
    dense: bool = False,
) -> tuple[dict[tuple[int, int], list[int]], Scheduler]:
    """Run (prompt, n, limit) jobs; token = its position, an end drawn by chance. Returns the
    outputs."""
    chance = random.Random(seed)
    manager = BlockManager(blocks, block_size)
    scheduler = Scheduler(SchedulerLimits(rows, 64, dense), manager)
    device = FakeDevice(rows, manager)
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
    st.booleans(),
)
def test_nothing_is_lost_or_doubled(
    prompts: list[tuple[tuple[int, ...], int, int]],
    rows: int,
    spare: int,
    block_size: int,
    seed: int,
    ahead: int,
    dense: bool,
) -> None:
    longest = max(len(tokens) + limit for tokens, _, limit in prompts)
    blocks = 1 + -(-longest // block_size) + spare
    drive(prompts, rows, blocks, block_size, seed, ahead, dense)


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
    assert scheduler.waiting.samples == 4


def test_live_blocks_stay_together_where_asked_for() -> None:
    jobs = [(tuple(range(i, i + 9)), 1, 3 + 5 * (i % 4)) for i in range(48)]
    spread = {}
    for dense in (True, False):
        scheduler = Scheduler(SchedulerLimits(16, 512, dense), BlockManager(400, 4))
        for number, (tokens, _, limit) in enumerate(jobs):
            request = Request(number, number, tokens, SamplingParams(max_tokens=limit), (0,))
            scheduler.add(Sequence(request, 0, (0, 0), limit))
        spread[dense] = 0.0
        while (step := scheduler.schedule()) is not None:
            if not step.is_prefill and scheduler.blocks.referenced:
                highest = max((max(s.blocks) for s in scheduler.rows if s.blocks), default=0)
                share = highest / scheduler.blocks.referenced
                spread[dense] = max(spread[dense], share)
            for sequence in scheduler.rows:
                sequence.finished |= sequence.launched == sequence.limit
    assert spread[True] < 0.6 * spread[False]


def test_compacting_keeps_every_prefix() -> None:
    manager = BlockManager(30, 4)
    held = {start: [manager.allocate() for _ in range(3)] for start in range(0, 40, 10)}
    for start, blocks in held.items():
        manager.register_prefix(range(start, start + 12), blocks)
    manager.release(held.pop(0))  # cached: they hold a prefix that nobody uses
    manager.release(held.pop(20)[:2])
    kept = [*held[10], *held[30]]
    number = manager.compact()
    assert all(set(number) >= {new} or new > manager.referenced for new in number.values())
    manager.check_integrity([[number.get(block, block) for block in kept], [number.get(9, 9)]])
    assert manager.referenced == 7
    assert manager.match_prefix([*range(12), 0]) == [number.get(b, b) for b in (1, 2, 3)]
    assert manager.match_prefix([*range(10, 22), 0]) == [number.get(b, b) for b in held[10]]

"""Decides what the next launch is: admits prompts, hands out blocks, closes holes, preempts. No
torch.

Sequences live in rows [0, B) of the device's row table. Decisions depend on counts of steps alone,
never on clocks, so that the same input gives the same launches. What the host can't know ahead
(end tokens, stop strings) reaches it one launch late through `finish`; what it can (lengths,
positions, blocks) it counts itself.

    waiting: [group | group | ...]  --admit-->  rows [0, B)  --finish, preempt-->  hole, filled
    from the tail
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from santagen.engine.batch import Features, PrefillItem, Step
from santagen.engine.block_manager import BlockManager
from santagen.engine.sequence import PromptGroup, Sequence
from santagen.engine.waiting_queue import WaitingQueue

SPARSE = 1.15  # numbers to a live block above which the blocks are brought together
MAX_PREFILL_SAMPLES = 512  # bounds the logits of one prefill: [samples, vocabulary] float32


@dataclass(frozen=True)
class SchedulerLimits:
    """max_num_seqs rows; max_num_batched_tokens new prompt tokens a prefill (one longer prompt
    goes alone); dense_blocks: keep the live blocks of the cache together."""

    max_num_seqs: int
    max_num_batched_tokens: int
    dense_blocks: bool = False


@dataclass
class SchedulerCounts:
    """What the scheduler did, for the run's summary."""

    prefills: int = 0
    decodes: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """See the module's contract."""

    def __init__(self, limits: SchedulerLimits, blocks: BlockManager) -> None:
        self.limits, self.blocks = limits, blocks
        self.counts = SchedulerCounts()
        self.rows: list[Sequence] = []
        self.waiting = WaitingQueue()
        self._position = np.zeros(limits.max_num_seqs, np.int64)  # where the next fed token stands
        self._left = np.zeros(limits.max_num_seqs, np.int64)  # tokens still to be launched
        self._gone: list[Sequence] = []  # rows to be vacated at the next launch
        self._moves: dict[int, int] = {}  # target row: the row where the device still has it
        self._device_size = 0  # rows that the device takes for live
        self._features: Features | None = None  # of the rows, until they change
        self._admissions = 0
        self._vacated = False  # rows have left since the blocks were last looked at
        self._filling = False  # the last launch was a prefill, and rows were still free
        self.needs_drain = False  # a preemption is due: outstanding tokens must be read first

    # -- queue ---------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a sample behind the others; samples of identical prompts wait together."""
        self.waiting.add(sequence)

    def short(self, most: int) -> bool:
        """The next launch could use more than waits; never with `most` samples waiting."""
        free = self.limits.max_num_seqs - self.running
        if self.waiting.samples >= most:
            return False
        if not self._room_for_many(free):
            return self.waiting.samples <= free  # as many as all the rest would be prefilled
        packed = self.waiting.tokens >= self.limits.max_num_batched_tokens
        return self.waiting.samples < free and not packed

    @property
    def idle(self) -> bool:
        return not self.rows and not self.waiting

    @property
    def running(self) -> int:
        """Rows whose samples go on."""
        return len(self.rows) - len(self._gone)

    def finish(self, sequence: Sequence) -> None:
        """The output processor saw this sample's end; its row is vacated at the next launch."""
        if sequence.row >= 0 and sequence.blocks:
            self._leave(sequence)

    # -- one launch ----------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        """The next launch, or None: nothing to do, or `needs_drain` says tokens must be read
        first."""
        self.needs_drain = False
        self._close_holes()
        step = self._schedule_prefill() or self._schedule_decode()
        if step is None:
            return None
        step.moves = [(source, target) for target, source in self._moves.items()]
        # Rows that this launch fills anew are not among them: one scatter must not write a place
        # twice.
        step.vacated = range(step.size, self._device_size)
        self._moves.clear()
        self._device_size = step.size
        return step

    def _close_holes(self) -> None:
        """Fill the rows of leaving sequences from the tail; `_moves` says where the device finds
        them."""
        if not self._gone:
            return
        size = len(self.rows)
        gone = {sequence.row for sequence in self._gone}
        new_size = size - len(gone)
        movers = [row for row in range(new_size, size) if row not in gone]
        holes = sorted(row for row in gone if row < new_size)
        for sequence in self._gone:
            sequence.row = -1
        for source, target in zip(movers, holes, strict=True):
            sequence = self.rows[source]
            self.rows[target] = sequence
            sequence.row = target
            self._position[target] = self._position[source]
            self._left[target] = self._left[source]
            # The launch may be put off (a drain): then a row can move twice before the device
            # hears of it.
            self._moves[target] = self._moves.pop(source, source)
        for row in range(new_size, size):
            self._moves.pop(row, None)
        del self.rows[new_size:]
        self._gone.clear()
        self._features = None
        self._vacated = True

    def _leave(self, sequence: Sequence) -> None:
        """Free its blocks (later launches on the same stream may reuse them) and vacate its row
        soon."""
        self.blocks.release(sequence.blocks)
        sequence.blocks = []
        self._gone.append(sequence)

    # -- prefill -------------------------------------------------------------------------------

    def _schedule_prefill(self) -> Step | None:
        free = self.limits.max_num_seqs - len(self.rows)
        if not self.waiting or not free or not self._worth_filling(free):
            self._filling = False
            return None
        items: list[PrefillItem] = []
        budget, samples = self.limits.max_num_batched_tokens, MAX_PREFILL_SAMPLES
        while self.waiting and free > 0 and samples > 0:
            group = self.waiting.first
            item = self._admit(group, min(free, samples), budget, first=not items)
            if item is None:
                break
            items.append(item)
            budget -= len(item.tokens) - item.cached
            free -= len(item.samples)
            samples -= len(item.samples)
            if group.waiting:
                break  # rows, samples or blocks ran out inside the group
            self.waiting.drop_first()
        self._filling = bool(items)
        return self._prefill_step(items) if items else None

    def _worth_filling(self, free: int) -> bool:
        """Every prefill interrupts decoding: wait for an eighth of the rows, unless little is
        running or all that waits fits; once begun, fill every row."""
        return self._room_for_many(free) or self.waiting.samples <= free

    def _room_for_many(self, free: int) -> bool:
        useful = max(1, self.limits.max_num_seqs // 8)
        return self._filling or free >= useful or len(self.rows) <= useful

    def _prefill_step(self, items: list[PrefillItem]) -> Step:
        sequences = [sequence for item in items for sequence in item.samples]
        last = np.zeros(len(sequences), bool)
        for i, sequence in enumerate(sequences):
            row = sequence.row
            sequence.launched += 1
            self._position[row] = len(sequence.request.prompt_token_ids) + sequence.launched - 1
            self._left[row] = sequence.limit - sequence.launched
            last[i] = self._left[row] == 0
        step = Step(
            len(self.rows),
            sequences,
            last,
            Features.of(sequences),
            max(len(item.tokens) for item in items),
            prefill=items,
        )
        for i in np.flatnonzero(last).tolist():
            self._leave(sequences[i])
        self.counts.prefills += 1
        self.counts.prefill_tokens += sum(len(item.tokens) - item.cached for item in items)
        self.counts.cached_tokens += sum(item.cached for item in items)
        return step

    def _admit(self, group: PromptGroup, most: int, budget: int, first: bool) -> PrefillItem | None:
        """Give up to `most` samples of the group rows and blocks; None when nothing fits now."""
        size, tokens = self.blocks.block_size, group.tokens
        whole, rest = divmod(len(tokens), size)
        again = group.blocks is not None
        prefix = [] if again else self.blocks.match_prefix(tokens)
        cached = len(tokens) - 1 if again else len(prefix) * size
        if len(tokens) - cached > budget and not first:
            return None
        # Shared prefix blocks that nobody references count as available until they are shared.
        for block in prefix:
            self.blocks.share(block)
        common = 0 if again else whole + (rest > 0) - len(prefix)
        spare = self.blocks.available - common - self._watermark()
        count = min(most, len(group.waiting))
        if rest:
            # Each sample owns its partial block; the last waiting one takes over the group's.
            own = spare + (1 if spare + 1 >= len(group.waiting) else 0)
            count = min(count, own)
        # No block for a copy: one sample may take the prompt's own, and the others prefill it
        # again later.
        take = count == 0 and spare >= 0 and not again
        if spare < 0 or (count <= 0 and not take):
            self.blocks.release(prefix)
            return None
        blocks = group.blocks
        if blocks is None:
            blocks = [*prefix, *(self.blocks.allocate() for _ in range(common))]
            self.blocks.register_prefix(tokens, blocks)
        self._features = None
        item = PrefillItem(tokens, cached, list(blocks), keep_last=again)
        group.blocks = blocks
        for _ in range(max(count, take)):
            self._seat(group, item, whole, take)
        return item

    def _seat(self, group: PromptGroup, item: PrefillItem, whole: int, take: bool) -> None:
        """Move one sample of the group into a row, with a block table of its own (`take`: the
        prompt's)."""
        sequence = self.waiting.take(group)
        blocks = group.blocks
        assert blocks is not None
        if take or not group.waiting:
            sequence.blocks, group.blocks = blocks, None
        else:
            sequence.blocks = [self.blocks.share(block) for block in blocks[:whole]]
            if len(blocks) > whole:
                own = self.blocks.allocate()
                item.copies.append((blocks[whole], own))
                sequence.blocks.append(own)
        sequence.table = list(sequence.blocks)
        sequence.row = len(self.rows)
        sequence.admitted = self._admissions
        self._admissions += 1
        self.rows.append(sequence)
        item.samples.append(sequence)

    def _watermark(self) -> int:
        """Blocks left free at admission: one to grow into for each running row, else they preempt
        each other."""
        return len(self.rows)

    # -- decode --------------------------------------------------------------------------------

    def _schedule_decode(self) -> Step | None:
        size = len(self.rows)
        if not size:
            if self.waiting:  # blocks are short though nothing runs: prompts that wait hold them
                self._drop_held_blocks()
                return self._schedule_prefill()
            return None
        block_size = self.blocks.block_size
        at_block_start = np.flatnonzero(self._position[:size] % block_size == 0).tolist()
        wanting = [
            row
            for row in at_block_start
            if len(self.rows[row].blocks) * block_size <= self._position[row]
        ]
        if len(wanting) > self.blocks.available:
            self._drop_held_blocks()
        if len(wanting) > self.blocks.available:
            self.needs_drain = True
            return None
        new_blocks, block_moves = self._compact() if self.limits.dense_blocks else ([], [])
        for row in wanting:
            sequence = self.rows[row]
            block = self.blocks.allocate()
            new_blocks.append((row, len(sequence.blocks), block))
            sequence.blocks.append(block)
        self._position[:size] += 1
        self._left[:size] -= 1
        last = self._left[:size] == 0
        sequences = list(self.rows)
        if self._features is None:
            self._features = Features.of(sequences)
        for sequence in sequences:
            sequence.launched += 1
        step = Step(
            size,
            sequences,
            last,
            self._features,
            int(self._position[:size].max()),
            new_blocks=new_blocks,
            block_moves=block_moves,
        )
        for row in np.flatnonzero(last).tolist():
            self._leave(sequences[row])
        self.counts.decodes += 1
        return step

    def _compact(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
        """(table entries to change, blocks to move) that bring the live blocks together, where too
        many others lie among them."""
        if not self._vacated:
            return [], []
        self._vacated = False
        highest = max(max(sequence.blocks) for sequence in self.rows)
        if highest <= SPARSE * self.blocks.referenced:
            return [], []
        number = self.blocks.compact()
        for group in self.waiting:
            if group.blocks is not None:
                group.blocks = [number.get(block, block) for block in group.blocks]
        changed = []
        for sequence in self.rows:
            for column, block in enumerate(sequence.blocks):
                if block in number:
                    sequence.blocks[column] = number[block]
                    changed.append((sequence.row, column, number[block]))
        return changed, list(number.items())

    def _drop_held_blocks(self) -> None:
        """Prompts whose samples still wait give their blocks back; they are prefilled again."""
        for group in self.waiting:
            if group.blocks is not None:
                self.blocks.release(group.blocks)
                group.blocks = None

    def preempt(self) -> None:
        """After a drain: send the youngest rows back to the queue until the next decode has its
        blocks."""
        gone = {sequence.row for sequence in self._gone}
        alive = [row for row in range(len(self.rows)) if row not in gone]
        alive.sort(key=lambda row: self.rows[row].admitted)
        block_size = self.blocks.block_size
        while alive:
            wanting = sum(
                len(self.rows[row].blocks) * block_size <= self._position[row] for row in alive
            )
            if wanting <= self.blocks.available:
                return
            assert len(alive) > 1, "one sequence alone always fits the cache"
            sequence = self.rows[alive.pop()]
            self._leave(sequence)
            self._wait_again(sequence)

    def _wait_again(self, sequence: Sequence) -> None:
        """Queue a sample in front, to be recomputed with what the host has read of it."""
        sequence.launched = len(sequence.output)
        self.waiting.put_back(sequence)
        self.counts.preemptions += 1

    def take_back(self, step: Step) -> None:
        """The launch of `step` failed for want of memory, and what was launched before it is read:
        every row waits again, to be recomputed, and later launches are half as large."""
        limits = self.limits
        for sequence in reversed([s for s in self.rows if not s.finished]):
            self.blocks.release(sequence.blocks)
            sequence.blocks, sequence.row = [], -1
            self._wait_again(sequence)
        self._empty_rows()
        self._drop_held_blocks()
        self.blocks.clear()  # prefixes of this launch were offered, and never computed
        self.limits = SchedulerLimits(
            max(1, min(limits.max_num_seqs, step.size) // 2),
            max(1, limits.max_num_batched_tokens // 2),
            limits.dense_blocks,
        )

    def forget(self) -> None:
        """Drop every sequence and every block. Rows that the device takes for live are vacated
        with the next launch."""
        self._empty_rows()
        self.waiting.clear()
        self.needs_drain = False
        self.blocks.reset()

    def _empty_rows(self) -> None:
        self.rows.clear()
        self._gone.clear()
        self._moves.clear()
        self._features, self._filling = None, False

    def check_integrity(self) -> None:
        """For tests: blocks are counted right and rows are numbered right."""
        held = [group.blocks for group in self.waiting if group.blocks is not None]
        self.blocks.check_integrity([*(s.blocks for s in self.rows if s.blocks), *held])
        assert [s.row for s in self.rows] == list(range(len(self.rows)))
        self.waiting.check_integrity()

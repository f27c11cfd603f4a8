"""Decides what the next launch is: which prompts are admitted, who decodes, who is preempted. No
torch.

Decisions depend on counts of steps alone, never on clocks, so that the same input gives the same
launches. What the host can't know ahead (end tokens, stop strings) reaches it one launch late
through `finish`; what it can (lengths, positions, blocks) it counts itself. Who waits is the
business of waiting_queue, who sits in which row that of running_rows, and which block is whose that
of block_manager.

    waiting: [group | group | ...]  --admit-->  rows [0, B)  --finish, preempt-->  free rows, blocks
"""

from __future__ import annotations

from dataclasses import dataclass

from santagen.engine.batch import Features, PrefillItem, Step
from santagen.engine.block_manager import BlockManager
from santagen.engine.running_rows import RunningRows
from santagen.engine.sequence import PromptGroup, Sequence
from santagen.engine.waiting_queue import WaitingQueue

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
        self.rows = RunningRows(limits.max_num_seqs, blocks)
        self.waiting = WaitingQueue()
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
        return self.rows.staying

    def finish(self, sequence: Sequence) -> None:
        """The output processor saw this sample's end; its row is vacated at the next launch."""
        if sequence.row >= 0 and sequence.blocks:
            self.rows.leave(sequence)

    # -- one launch ----------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        """The next launch, or None: nothing to do, or `needs_drain` says tokens must be read
        first."""
        self.needs_drain = False
        self.rows.close_holes()
        step = self._schedule_prefill() or self._schedule_decode()
        if step is not None:
            step.moves, step.vacated = self.rows.hand_over()
        return step

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
        self.counts.prefills += 1
        self.counts.prefill_tokens += sum(len(item.tokens) - item.cached for item in items)
        self.counts.cached_tokens += sum(item.cached for item in items)
        sequences = [sequence for item in items for sequence in item.samples]
        last = self.rows.start(sequences)
        return Step(
            len(self.rows),
            sequences,
            last,
            Features.of(sequences),
            max(len(item.tokens) for item in items),
            prefill=items,
        )

    def _admit(self, group: PromptGroup, most: int, budget: int, first: bool) -> PrefillItem | None:
        """Give up to `most` samples of the group rows and blocks; None when nothing fits now."""
        size, tokens = self.blocks.block_size, group.tokens
        again = group.blocks is not None
        prefix = [] if again else self.blocks.match_prefix(tokens)
        cached = len(tokens) - 1 if again else len(prefix) * size
        if len(tokens) - cached > budget and not first:
            return None
        # Shared prefix blocks that nobody references count as available until they are shared.
        for block in prefix:
            self.blocks.share(block)
        missing = 0 if again else -(-len(tokens) // size) - len(prefix)
        count, take = self._places(group, most, missing)
        if not count:
            self.blocks.release(prefix)
            return None
        if group.blocks is None:
            group.blocks = [*prefix, *(self.blocks.allocate() for _ in range(missing))]
            self.blocks.register_prefix(tokens, group.blocks)
        item = PrefillItem(tokens, cached, list(group.blocks), keep_last=again)
        for _ in range(count):
            self._seat(group, item, take)
        return item

    def _places(self, group: PromptGroup, most: int, missing: int) -> tuple[int, bool]:
        """(samples of the group that blocks are left for, once the prompt has those it misses;
        whether the only one has to take the prompt's own)."""
        # One block to grow into stays free for each running row, else they preempt each other.
        spare = self.blocks.available - missing - len(self.rows)
        if spare < 0:
            return 0, False
        waiting = len(group.waiting)
        if len(group.tokens) % self.blocks.block_size == 0:
            return min(most, waiting), False
        # Each sample owns its partial block; the last waiting one takes over the group's.
        own = spare + (spare + 1 >= waiting)
        if own or group.blocks is not None:
            return min(most, waiting, own), False
        # No block for a copy: one sample takes the prompt's, and the others prefill it again later.
        return 1, True

    def _seat(self, group: PromptGroup, item: PrefillItem, take: bool) -> None:
        """Move one sample of the group into a row, with a block table of its own (`take`: the
        prompt's)."""
        sequence, blocks = self.waiting.take(group), item.blocks
        item.samples.append(sequence)
        if take or not group.waiting:
            group.blocks = None
            self.rows.seat(sequence, list(blocks))
            return
        whole = len(item.tokens) // self.blocks.block_size
        table = [self.blocks.share(block) for block in blocks[:whole]]
        if whole < len(blocks):
            table.append(self.blocks.allocate())
            item.copies.append((blocks[whole], table[whole]))
        self.rows.seat(sequence, table)

    # -- decode --------------------------------------------------------------------------------

    def _schedule_decode(self) -> Step | None:
        rows = self.rows
        if not rows:
            if self.waiting:  # blocks are short though nothing runs: prompts that wait hold them
                self._drop_held_blocks()
                return self._schedule_prefill()
            return None
        wanting = rows.wanting()
        if len(wanting) > self.blocks.available:
            self._drop_held_blocks()
        if len(wanting) > self.blocks.available:
            self.needs_drain = True
            return None
        changed, block_moves = rows.compact(self.waiting) if self.limits.dense_blocks else ([], [])
        new_blocks = changed + rows.grow(wanting)
        last = rows.advance()
        self.counts.decodes += 1
        return Step(
            len(rows),
            list(rows),
            last,
            rows.features,
            rows.longest,
            new_blocks=new_blocks,
            block_moves=block_moves,
        )

    def _drop_held_blocks(self) -> None:
        """Prompts whose samples still wait give their blocks back; they are prefilled again."""
        for group in self.waiting:
            if group.blocks is not None:
                self.blocks.release(group.blocks)
                group.blocks = None

    def preempt(self) -> None:
        """After a drain: send the youngest rows back to the queue until the next decode has its
        blocks."""
        # What has left holds no blocks and wants none.
        staying = sorted((s for s in self.rows if s.blocks), key=lambda s: s.admitted)
        wanting = {s.row for s in staying} & set(self.rows.wanting())
        while len(wanting) > self.blocks.available:
            assert len(staying) > 1, "one sequence alone always fits the cache"
            sequence = staying.pop()
            wanting.discard(sequence.row)
            self.rows.leave(sequence)
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
        self.rows.clear()
        self._filling = False
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
        self.rows.clear()
        self._filling = False
        self.waiting.clear()
        self.needs_drain = False
        self.blocks.reset()

    def check_integrity(self) -> None:
        """For tests: blocks are counted right and rows are numbered right."""
        held = [group.blocks for group in self.waiting if group.blocks is not None]
        self.blocks.check_integrity([*(s.blocks for s in self.rows if s.blocks), *held])
        self.rows.check_integrity()
        self.waiting.check_integrity()

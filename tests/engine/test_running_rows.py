"""Running rows on their own: holes, what the device is told of them, tokens, and blocks brought
together. `test_scheduler` drives them at random."""

from __future__ import annotations

from collections import deque

from santagen.engine.block_manager import BlockManager
from santagen.engine.running_rows import RunningRows
from santagen.engine.sequence import PromptGroup, Sequence
from santagen.request import Request, SamplingParams

PROMPT = (1, 2, 3, 4, 5, 6)  # two blocks of four


def seated(*limits: int) -> tuple[RunningRows, BlockManager, list[Sequence]]:
    """A row for each limit, the first tokens launched and the device told."""
    blocks = BlockManager(100, 4)
    rows = RunningRows(len(limits), blocks)
    for number, limit in enumerate(limits):
        request = Request(number, number, PROMPT, SamplingParams(max_tokens=limit), (0,))
        rows.seat(Sequence(request, 0, (0, 0), limit), [blocks.allocate(), blocks.allocate()])
    sequences = list(rows)
    assert rows.start(sequences).tolist() == [limit == 1 for limit in limits]
    rows.hand_over()
    rows.check_integrity()
    return rows, blocks, sequences


def vacate(rows: RunningRows, *sequences: Sequence) -> None:
    for sequence in sequences:
        rows.leave(sequence)
    rows.close_holes()
    rows.check_integrity()


def test_holes_are_filled_from_the_tail() -> None:
    rows, blocks, (a, b, c, d, e, f) = seated(9, 9, 9, 9, 9, 9)
    rows.leave(b)
    rows.leave(d)
    assert (len(rows), rows.staying, blocks.referenced) == (6, 4, 8)
    rows.close_holes()
    rows.check_integrity()
    assert list(rows) == [a, e, c, f]
    assert (b.row, d.row, b.blocks) == (-1, -1, [])
    assert rows.hand_over() == ([(4, 1), (5, 3)], range(4, 6))
    assert rows.hand_over() == ([], range(4, 4))


def test_a_row_that_moves_twice_before_a_launch_is_found_where_the_device_has_it() -> None:
    rows, _, (a, b, c, d, e) = seated(9, 9, 9, 9, 9)
    vacate(rows, b)
    assert list(rows) == [a, e, c, d]
    vacate(rows, a, c, d)
    assert list(rows) == [e]
    assert rows.hand_over() == ([(4, 0)], range(1, 5))


def test_a_row_that_moves_and_then_leaves_is_no_move() -> None:
    rows, _, (a, b, c) = seated(9, 9, 9)
    vacate(rows, b)
    vacate(rows, c)
    assert list(rows) == [a]
    assert rows.hand_over() == ([], range(1, 3))


def test_a_row_filled_anew_is_not_vacated() -> None:
    rows, blocks, (_, b, c) = seated(9, 9, 9)
    vacate(rows, b, c)
    rows.seat(Sequence(b.request, 1, (0, 0), 9), [blocks.allocate(), blocks.allocate()])
    assert rows.hand_over() == ([], range(2, 3))


def test_cleared_rows_are_vacated_with_the_next_launch() -> None:
    rows, _, _ = seated(9, 9, 9)
    rows.clear()
    assert list(rows) == []
    assert rows.hand_over() == ([], range(3))


def test_tokens_are_counted_and_the_last_one_leaves() -> None:
    rows, _, (a, b) = seated(5, 4)
    assert (rows.longest, rows.wanting()) == (6, [])
    assert rows.advance().tolist() == [False, False]
    assert rows.advance().tolist() == [False, False]
    assert (rows.longest, rows.wanting()) == (8, [0, 1])  # two blocks are full
    assert rows.grow([0, 1]) == [(0, 2, 5), (1, 2, 6)]
    assert rows.advance().tolist() == [False, True]
    assert (a.blocks, b.blocks, rows.staying) == ([1, 2, 5], [], 1)
    assert (a.launched, b.launched) == (4, 4)


def test_a_moved_row_keeps_its_counts() -> None:
    rows, _, (a, b, c) = seated(1, 9, 3)
    assert a.blocks == []
    rows.close_holes()
    assert list(rows) == [c, b]
    assert rows.advance().tolist() == [False, False]
    assert rows.advance().tolist() == [True, False]


def test_a_preempted_sequence_starts_where_it_was() -> None:
    rows, blocks, (_, b) = seated(9, 9)
    rows.advance()
    vacate(rows, b)
    rows.seat(b, [blocks.allocate(), blocks.allocate()])
    assert rows.start([b]).tolist() == [False]
    assert (b.launched, rows.longest, b.admitted) == (3, 8, 2)


def test_blocks_are_brought_together_once_rows_have_left() -> None:
    rows, blocks, sequences = seated(*[9] * 12)
    group = PromptGroup((9,), deque(), [blocks.allocate()])
    assert rows.compact([group]) == ([], [])
    vacate(rows, *sequences[:10])
    y, z = rows
    entries, moves = rows.compact([group])
    assert dict(moves).keys() == {21, 22, 23, 24, 25}
    assert sorted([*y.blocks, *z.blocks, *(group.blocks or [])]) == [1, 2, 3, 4, 5]
    assert entries == [(s.row, column, s.blocks[column]) for s in (y, z) for column in (0, 1)]
    blocks.check_integrity([y.blocks, z.blocks, group.blocks or []])
    assert rows.compact([group]) == ([], [])

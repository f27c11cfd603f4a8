"""The samples that wait for a row, by prompt: samples of one prompt wait together, whoever asked
for them, so that it is computed once. Counts them; decides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from santagen.engine.sequence import PromptGroup, Sequence


class WaitingQueue:
    """Groups in the order of their admission. `samples` wait, of prompts of `tokens` in all."""

    def __init__(self) -> None:
        self._groups: deque[PromptGroup] = deque()
        self._open: dict[tuple[int, ...], PromptGroup] = {}  # those that later samples may join
        self.samples = 0
        self.tokens = 0

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __iter__(self) -> Iterator[PromptGroup]:
        return iter(self._groups)

    @property
    def first(self) -> PromptGroup:
        return self._groups[0]

    def add(self, sequence: Sequence) -> None:
        """Queue a sample behind the others, or with those of its prompt."""
        tokens = sequence.request.prompt_token_ids
        group = self._open.get(tokens)
        if group is None:
            group = self._open[tokens] = PromptGroup(tokens, deque())
            self._groups.append(group)
            self.tokens += len(tokens)
        group.waiting.append(sequence)
        self.samples += 1

    def put_back(self, sequence: Sequence) -> None:
        """Queue a sample in front, with what the host has read of it for its prompt."""
        self._groups.appendleft(PromptGroup(sequence.tokens, deque([sequence])))
        self.tokens += len(sequence.tokens)
        self.samples += 1

    def take(self, group: PromptGroup) -> Sequence:
        """The next sample of a group."""
        self.samples -= 1
        return group.waiting.popleft()

    def drop_first(self) -> None:
        """The first group has no samples left."""
        group = self._groups.popleft()
        self.tokens -= len(group.tokens)
        if self._open.get(group.tokens) is group:
            del self._open[group.tokens]

    def clear(self) -> None:
        self._groups.clear()
        self._open.clear()
        self.samples = self.tokens = 0

    def check_integrity(self) -> None:
        """For tests: the counts are right."""
        assert self.samples == sum(len(group.waiting) for group in self._groups)
        assert self.tokens == sum(len(group.tokens) for group in self._groups)

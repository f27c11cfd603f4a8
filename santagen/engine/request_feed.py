"""Draws requests ahead of the scheduler, and queues those that share a prefix one after another.

Requests are drawn a few at a time, while the device works, into a window; when the scheduler runs
short, the whole window is handed over, families of a common prefix side by side: the blocks of a
header that comes back every few hundred rows are then still there. Decides nothing about launches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from santagen.engine.block_manager import prefix_order
from santagen.request import Request, RowFailure

DRAWN_TOKENS = 1 << 20  # of prompts in a window at most, at some 40 bytes of host memory each


class RequestFeed:
    """The requests of one run. `more`: the source may have others than those drawn."""

    def __init__(self, requests: Iterable[Request | RowFailure], block_size: int) -> None:
        self._source = iter(requests)
        self._block_size = block_size
        self._window: list[Request] = []
        self._tokens = 0
        self.samples = 0  # in the window
        self.more = True

    @property
    def full(self) -> bool:
        """The window's prompts take as much memory as they may."""
        return self._tokens >= DRAWN_TOKENS

    def draw(self, samples: int) -> Generator[RowFailure, None, None]:
        """Draw requests of at least so many samples into the window, as far as there are any.

        Yields the failures among them.
        """
        wanted = self.samples + samples
        while self.more and self.samples < wanted and not self.full:
            request = next(self._source, None)
            if request is None:
                self.more = False
            elif isinstance(request, RowFailure):
                yield request
            else:
                self._window.append(request)
                self.samples += len(request.sample_indices)
                self._tokens += len(request.prompt_token_ids)

    def hand_over(self) -> Iterator[Request]:
        """The window's requests in the order to queue them in; it is empty afterwards."""
        window, self._window = self._window, []
        self.samples = self._tokens = 0
        prompts = [request.prompt_token_ids for request in window]
        return (window[at] for at in prefix_order(prompts, self._block_size))

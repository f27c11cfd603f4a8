"""Stop strings, searched exactly and only where one can have ended.

A stop can be completed only by a token that begins with the stop's tail, or holds the stop whole:

    stop         \\n d e f
    token   ...\\n|d e f _ x     "def" is a tail of the stop and the token begins with it
    token         |; \\n d e f    the stop lies inside the token

`can_end[v]` says so for each token of the vocabulary, so a row's bytes are looked at only after
such a token. Searching is literal, over bytes; cutting and decoding the text is the caller's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenIndex:
    """A vocabulary's token bytes, arranged to find those that begin with, or hold, given bytes.

    Made once per tokenizer. An id without a token (None) is never found.
    """

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self.size = len(token_bytes)
        known = [(data, token) for token, data in enumerate(token_bytes) if data]
        known.sort()
        self._sorted = [data for data, _ in known]
        self._ids = np.array([token for _, token in known], dtype=np.int64)
        self._all = b"".join(self._sorted)
        lengths = np.array([len(data) for data in self._sorted], dtype=np.int64)
        self._ends = np.cumsum(lengths)  # where each token ends in _all

    def beginning_with(self, start: bytes) -> NDArray[np.int64]:
        """The ids of all tokens that begin with `start`."""
        first = bisect_left(self._sorted, start)
        last = bisect_right(self._sorted, start, lo=first, key=lambda data: data[: len(start)])
        return self._ids[first:last]

    def holding(self, part: bytes) -> NDArray[np.int64]:
        """The ids of all tokens that hold `part` somewhere."""
        places: list[int] = []
        at = self._all.find(part)
        while at >= 0:
            places.append(at)
            at = self._all.find(part, at + 1)
        begins = np.array(places, dtype=np.int64)
        tokens = np.searchsorted(self._ends, begins, side="right")
        whole = begins + len(part) <= self._ends[tokens]  # not across the border of two tokens
        return self._ids[np.unique(tokens[whole])]


class StopSet:
    """The stop strings of a row, in the order given. No stops is fine: nothing then ends a row.

    `can_end` is bool [V]: whether a token may complete one of the stops. `longest` is in bytes.
    """

    def __init__(self, stops: tuple[str, ...], tokens: TokenIndex | Sequence[bytes | None]) -> None:
        index = tokens if isinstance(tokens, TokenIndex) else TokenIndex(tokens)
        self.stops = stops
        self._bytes = [stop.encode("utf-8", "surrogatepass") for stop in stops]
        self.longest = max(map(len, self._bytes), default=0)
        self.can_end: NDArray[np.bool_] = np.zeros(index.size, dtype=np.bool_)
        for stop in self._bytes:
            self.can_end[index.holding(stop)] = True
            for cut in range(1, len(stop)):
                self.can_end[index.beginning_with(stop[cut:])] = True

    def search_from(self, length: int) -> int:
        """Where to begin once a token was added behind `length` bytes: no earlier match is new."""
        return max(0, length - max(0, self.longest - 1))

    def find(self, data: bytes | bytearray, start: int = 0) -> tuple[int, str] | None:
        """The stop that begins first at or after `start`, and where; of two at one place, the
        one that stands first in `stops`."""
        best: tuple[int, str] | None = None
        for stop, text in zip(self._bytes, self.stops, strict=True):
            # Nothing that begins at or after the best so far can replace it.
            end = len(data) if best is None else best[0] + len(stop) - 1
            at = data.find(stop, start, end)
            if at >= 0:
                best = (at, text)
        return best

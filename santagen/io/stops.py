"""Stop strings: which tokens can complete one, and where the first match lies. Bytes only, literal search.

A new token can complete a stop string only if some non-empty end of the string is a start of the token's bytes, or the
string lies inside them. That is known per vocabulary entry before anything is generated, so most tokens never
cause a look at the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class StopSet:
    """The stop strings of a row. `can_end[v]`: token v may complete one of them."""

    def __init__(self, stops: tuple[str, ...], token_bytes: Sequence[bytes | None]) -> None:
        self.stops = stops
        self._bytes = [stop.encode("utf-8", "surrogatepass") for stop in stops]
        self._longest = max((len(stop) for stop in self._bytes), default=0)
        self.can_end = np.zeros(len(token_bytes), bool)
        # ends of stop strings by first byte: only tokens that start with it are compared
        ends: dict[int, list[bytes]] = {}
        for stop in self._bytes:
            for start in range(len(stop)):
                ends.setdefault(stop[start], []).append(stop[start:])
        for number, token in enumerate(token_bytes):
            if token:
                tails = ends.get(token[0], ())
                self.can_end[number] = any(token.startswith(tail) for tail in tails) or any(
                    stop in token for stop in self._bytes
                )

    def search_from(self, length: int) -> int:
        """Where to search in a text whose newest token begins at byte `length`."""
        return max(0, length - max(0, self._longest - 1))

    def find(self, data: bytes | bytearray, start: int = 0) -> tuple[int, str] | None:
        """(byte position, stop string) of the match that begins first; of two there, the one listed first."""
        best: tuple[int, str] | None = None
        for raw, stop in zip(self._bytes, self.stops, strict=True):
            position = data.find(raw, start)
            if position >= 0 and (best is None or position < best[0]):
                best = (position, stop)
        return best

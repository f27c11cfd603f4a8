"""How far the first reading of an input is: counted by the reader, looked at by another thread.

Knows nothing of how it is shown.
"""

from __future__ import annotations

import hashlib


class ReadCount:
    """Rows, good and bad, and bytes (decompressed) that were read so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0

    def sha256(self) -> CountingDigest:
        """A SHA-256 whose bytes are counted here."""
        return CountingDigest(self)


class CountingDigest:
    """A hash as hashlib's; every byte it takes is counted."""

    def __init__(self, count: ReadCount) -> None:
        self._count, self._hash = count, hashlib.sha256()

    def update(self, data: bytes, /) -> None:
        self._count.bytes += len(data)
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.digest()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

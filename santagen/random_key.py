"""The random stream of one sample: a 64-bit key made from (seed, row id, sample index) alone.

Neither the batch, the rank, the order nor the device enters, so a sample can be drawn again by
itself. The stream's numbers are made in kernels.philox.
"""

from __future__ import annotations

import json
from hashlib import blake2b

from santagen.request import RowId


def row_key(seed: int, row_id: RowId, index: int) -> tuple[int, int]:
    """Two 32-bit key words, low word first.

    They are the first 8 bytes, little-endian, of the 64-byte BLAKE2b digest of the compact ASCII
    JSON of [seed, row id, sample index], such as [0,"a b",3] or [0,7,3].
    """
    text = json.dumps([seed, row_id, index], separators=(",", ":"), ensure_ascii=True)
    key = int.from_bytes(blake2b(text.encode("ascii")).digest()[:8], "little")
    return key & 0xFFFFFFFF, key >> 32

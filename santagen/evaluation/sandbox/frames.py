"""Messages over a socket or a pipe: four bytes of length, then JSON. Nothing is ever unpickled.

The reader names the largest message it will take, so that a sender can't make it fill its memory.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

LARGEST = 64 << 20


class Closed(Exception):
    """The other end is gone."""


class Garbage(Exception):
    """What arrived is no message."""


def pack(message: Any) -> bytes:
    body = json.dumps(message).encode("ascii")
    return struct.pack("<I", len(body)) + body


def send(channel: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    data = pack(message)
    try:
        if descriptors:
            sent = socket.send_fds(channel, [data], descriptors)
            data = data[sent:]
        if data:
            channel.sendall(data)
    except OSError as error:
        raise Closed(str(error)) from None


def receive(channel: socket.socket, largest: int = LARGEST) -> Any:
    return _parse(lambda count: channel.recv(min(count, 1 << 20)), largest)


def receive_with_descriptor(channel: socket.socket, largest: int = LARGEST) -> tuple[Any, int]:
    """A message and the file descriptor that came with it, -1 for none."""
    found: list[int] = []

    def read(count: int) -> bytes:
        if found:
            return channel.recv(min(count, 1 << 20))
        data, descriptors, _, _ = socket.recv_fds(channel, min(count, 1 << 20), 1)
        found.extend(descriptors)
        return data

    message = _parse(read, largest)
    return message, found[0] if found else -1


def write_pipe(descriptor: int, message: Any) -> None:
    data = pack(message)
    while data:
        data = data[os.write(descriptor, data) :]


def read_pipe(descriptor: int, largest: int = LARGEST) -> Any:
    return _parse(lambda count: os.read(descriptor, min(count, 1 << 20)), largest)


def _parse(read: Any, largest: int) -> Any:
    (length,) = struct.unpack("<I", _exactly(read, 4))
    if length > largest:
        raise Garbage(f"a message of {length} bytes")
    try:
        return json.loads(_exactly(read, length))
    except (ValueError, RecursionError) as error:
        raise Garbage(str(error)) from None


def _exactly(read: Any, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = read(count - len(parts))
        except OSError as error:
            raise Closed(str(error)) from None
        if not part:
            raise Closed("end of the stream")
        parts += part
    return bytes(parts)

"""Refuses every connection that leaves this machine, in whatever Python process imports it.

The test session imports it, and puts its folder on PYTHONPATH so that child processes do so too.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

MESSAGE = "the tests may not use the network"


def _is_local(family: int, address: Any) -> bool:
    if family == getattr(socket, "AF_UNIX", None):
        return True
    if family not in (socket.AF_INET, socket.AF_INET6):
        return True  # netlink and the like never leave the machine
    return _is_loopback(address[0])


def _is_loopback(host: Any) -> bool:
    if isinstance(host, bytes):
        host = host.decode()
    if host in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _guard(name: str) -> None:
    original = getattr(socket.socket, name)

    def guarded(self: socket.socket, *args: Any) -> Any:
        address = args[-1]  # the last argument of connect, connect_ex and sendto
        if not _is_local(self.family, address):
            raise OSError(f"{MESSAGE}: {name} to {address!r}")
        return original(self, *args)

    setattr(socket.socket, name, guarded)


def _guarded_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_loopback(host):
        try:
            ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host)
        except ValueError:
            raise socket.gaierror(f"{MESSAGE}: looking up {host!r}") from None
    return _getaddrinfo(host, *args, **kwargs)


if not hasattr(socket, "_santagen_blocked"):
    socket._santagen_blocked = True  # type: ignore[attr-defined]
    _getaddrinfo = socket.getaddrinfo
    socket.getaddrinfo = _guarded_getaddrinfo  # type: ignore[assignment]
    for _name in ("connect", "connect_ex", "sendto"):
        _guard(_name)

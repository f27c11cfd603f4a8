"""The network is closed to tests and to the processes they start; this machine is not."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.offline.sitecustomize import MESSAGE


def test_connections_that_leave_the_machine_are_refused() -> None:
    with pytest.raises(OSError, match=MESSAGE):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(OSError, match=MESSAGE):
        socket.getaddrinfo("example.invalid", 80)


def test_loopback_still_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_child_processes_are_closed_in_too() -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode != 0
    assert MESSAGE in child.stderr

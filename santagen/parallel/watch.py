"""A thread per process that notices when another one is lost, and ends this one in order.

Every half second it says that this process lives (while the interpreter runs at all) and looks for
a failure that another process reported. Rank 0 watches every process and every process watches rank
0; one that is silent for SILENT_SECONDS counts as lost, as does the store when it can't be reached.
Then the main thread gets SIGTERM, which the command line turns into an orderly end; a main thread
that waits in a collective never sees it, so after GRACE_SECONDS the process ends without it, and
`farewell` is what it says. A silent process of this host is then killed, since one that is stopped
answers no other signal and its launcher would wait for it. What was written is safe either way:
samples are never buffered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

BEAT_SECONDS = 0.5
LOOK_EVERY = 4  # beats between looks at the others' beats
SILENT_SECONDS = 40.0
GRACE_SECONDS = 10.0
FAREWELL_SECONDS = 5.0  # for the last words; stderr may be a pipe that nobody reads
LOST_EXIT_CODE = 2
SIGNALLED_EXIT_CODE = 130
LISTEN_SECONDS = 4 * BEAT_SECONDS
ENDED = (b"left", b"ended")  # the last beats of a process that ends in order


class Board(Protocol):
    """The part of a c10d store that is used here."""

    def set(self, key: str, value: str) -> None: ...
    def check(self, keys: list[str]) -> bool: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...


class Watch:
    """Started and stopped by the main thread.

    `lost` is None, or what was lost in a sentence. `on_beat` runs with every beat, in the thread;
    `farewell` in one of its own before an end without the main thread. `signal` is the last signal
    that was seen here, which the main thread need not have.
    """

    def __init__(self, board: Board, rank: int, silent: float = SILENT_SECONDS) -> None:
        self.board, self.rank, self.silent = board, rank, silent
        self.lost: str | None = None
        self.signal: int | None = None
        self.on_beat: Callable[[], None] = lambda: None
        self.farewell: Callable[[], None] = lambda: None
        self._names: Sequence[str] = ()
        self._pids: Mapping[int, int] = {}
        self._silent_pid: int | None = None
        self._watched = range(0)
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._pipe: tuple[socket.socket, socket.socket] | None = None

    def start(self, names: Sequence[str], pids: Mapping[int, int]) -> None:
        """`names[r]` is what messages call rank r; `pids`: of the ranks on this host."""
        self._names, self._pids = names, pids
        self._watched = range(1, len(names)) if self.rank == 0 else range(1)
        if threading.current_thread() is threading.main_thread():
            # The one way to hear of a signal while the main thread is inside a library call.
            self._pipe = socket.socketpair()
            for end in self._pipe:
                end.setblocking(False)
            signal.set_wakeup_fd(self._pipe[1].fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            for end in self._pipe:
                end.close()

    def _run(self) -> None:
        beats = 0
        deadline: float | None = None
        while not self._stopped.wait(BEAT_SECONDS):
            beats += 1
            now = time.monotonic()
            if deadline is None and self.lost is None:
                self.lost = self._look(beats, now)
                if self.lost is not None:
                    os.kill(os.getpid(), signal.SIGTERM)
            if deadline is None and (self.lost is not None or self._was_signalled()):
                deadline = now + GRACE_SECONDS
            if deadline is not None and now > deadline:
                self._end()

    def _end(self) -> None:
        """End the process, whatever its main thread waits for."""
        words = threading.Thread(target=self.farewell, name="farewell", daemon=True)
        words.start()
        words.join(FAREWELL_SECONDS)
        self.end_silent()
        os._exit(LOST_EXIT_CODE if self.lost is not None else SIGNALLED_EXIT_CODE)

    def end_silent(self) -> None:
        """Kill the process that was found silent, where it runs on this host."""
        if self._silent_pid is None:
            return
        own = _command(os.getpid())
        if own is None or _command(self._silent_pid) != own:
            return  # another host's or namespace's, or its number is someone else's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._silent_pid, signal.SIGKILL)

    def _was_signalled(self) -> bool:
        if self._pipe is None:
            return False
        with contextlib.suppress(BlockingIOError):
            self.signal = self._pipe[0].recv(64)[-1]
            return True
        return False

    def _look(self, beats: int, now: float) -> str | None:
        """One beat: what is lost, or None."""
        try:
            self.board.set(f"beat/{self.rank}", str(beats))
            self.on_beat()
            if self.board.check(["failed"]):
                return self.board.multi_get(["failed"])[0].decode()
            return self._silent(now) if beats % LOOK_EVERY == 0 else None
        except Exception:  # the store's own errors share no narrower class
            return "the store that the processes of the run meet at can't be reached"

    def _silent(self, now: float) -> str | None:
        for rank, beat in zip(self._watched, self._beats(self.board), strict=True):
            before, since = self._seen.setdefault(rank, (beat, now))
            if beat in ENDED:
                continue
            if beat != before:
                self._seen[rank] = beat, now
            elif now - since > self.silent:
                self._silent_pid = self._pids.get(rank)
                lost = f"{self._names[rank]} has not answered for {self.silent:.0f} s"
                self.board.set("failed", lost)
                return lost
        return None

    def _beats(self, board: Board) -> list[bytes]:
        """The last beat of each watched process; empty for one that has not begun."""
        keys = [f"beat/{rank}" for rank in self._watched]
        if not keys:
            return []
        if board.check(keys):
            return board.multi_get(keys)
        return [board.multi_get([key])[0] if board.check([key]) else b"" for key in keys]

    def gone(self, board: Board) -> str | None:
        """Which of the watched processes went without a word, found out in a second or two.

        For a process that was signalled: the launcher may have done so because of that one.
        """
        before = self._beats(board)
        time.sleep(LISTEN_SECONDS)
        for rank, old, new in zip(self._watched, before, self._beats(board), strict=True):
            if new == old and new not in ENDED:
                return f"{self._names[rank]} is gone"
        return None


def _command(pid: int) -> bytes | None:
    """The command line of a process, the same for all ranks; None where it can't be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None

"""A pool of sandboxed workers in front of programs: submit a test, get a future of its outcome.

Workers are processes of their own (see `sandbox`), each driven by a thread here that only waits. A
time-out that may be the machine's fault is run once more, alone, when `finish` is called and
nothing else runs. A worker that breaks is replaced and its test run again; what breaks three
workers is the run's end, never a failed test. This module knows no tasks and no scores.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from santagen.errors import SantagenError
from santagen.evaluation.outcomes import Outcome, ProgramTest
from santagen.evaluation.sandbox import frames
from santagen.evaluation.workers import Limits, WorkerProcess, find_sandbox

ATTEMPTS = 3
WORKERS_PER_CORE = 2
CLOSE_SECONDS = 1.0


class Pool:
    """Runs tests on `workers` workers. Use as a context manager: leaving it ends every process."""

    def __init__(
        self,
        *,
        workers: int | None = None,
        limits: Limits | None = None,
        unsafe: bool = False,
        tier: str | None = None,
        readable: Sequence[str] = (),
    ) -> None:
        self.limits, self._readable = limits or Limits(), tuple(readable)
        self.workers = workers or WORKERS_PER_CORE * len(os.sched_getaffinity(0))
        self.sandbox, first = find_sandbox(self.limits, unsafe=unsafe, tier=tier, readable=readable)
        self.retries = 0
        self._queue: queue.SimpleQueue[tuple[ProgramTest, Future[Outcome]] | None] = (
            queue.SimpleQueue()
        )
        self._late: list[tuple[ProgramTest, Future[Outcome]]] = []
        self._open = 0
        self._closing = False
        self._lock = threading.Condition()
        self._spare: list[WorkerProcess] = [first]
        self._live = {first}  # every worker that is not closed
        self._threads = [
            threading.Thread(target=self._drive, name=f"scorer-{n}", daemon=True)
            for n in range(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, test: ProgramTest) -> Future[Outcome]:
        """Queue a test. Its future fails with SantagenError where no worker could run it."""
        future: Future[Outcome] = Future()
        with self._lock:
            self._open += 1
        self._queue.put((test, future))
        return future

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for all that was submitted, doubtful time-outs excepted; False where `seconds` were
        too few.
        """
        with self._lock:
            return self._lock.wait_for(lambda: self._open == 0, seconds)

    def retry(self) -> bool:
        """Run one doubtful time-out again; False where there is none. Only while nothing runs."""
        with self._lock:
            if not self._late:
                return False
            test, future = self._late.pop(0)
            worker = self._spare.pop() if self._spare else None
        self.retries += 1
        worker, answer = self._attempts(worker, test)
        with self._lock:
            if worker is not None:
                self._spare.append(worker)
        self._settle(future, answer, retried=True)
        return True

    def finish(self) -> None:
        """Wait for all that was submitted, then run the doubtful time-outs again, one at a time."""
        self.wait()
        while self.retry():
            pass

    def run(self, tests: Sequence[ProgramTest]) -> list[Outcome]:
        """All of `tests`, to the end."""
        futures = [self.submit(test) for test in tests]
        self.finish()
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the workers, at once. Tests that wait are dropped, and their futures cancelled."""
        self._closing = True
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[1].cancel()
        for _ in self._threads:
            self._queue.put(None)
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        for worker in list(self._live):
            worker.process.terminate()  # it may be in the middle of a long test
        for thread in self._threads:
            thread.join()
        for worker in list(self._live):
            self._retire(worker)
        for _, future in self._late:
            future.cancel()

    # -- one thread per worker -----------------------------------------------------------------

    def _drive(self) -> None:
        worker: WorkerProcess | None = None
        while (item := self._queue.get()) is not None:
            test, future = item
            if worker is None:
                with self._lock:
                    worker = self._spare.pop() if self._spare else None
            try:
                worker, answer = self._attempts(worker, test)
            except Exception as error:  # a fault here must reach the caller, not end this thread
                worker, answer = None, {"class": "broken", "message": repr(error)}
            with self._lock:
                doubtful = answer.get("class") == "timeout" and not answer.get("final")
                if doubtful:
                    self._late.append((test, future))
            if not doubtful:
                self._settle(future, answer)
            with self._lock:
                self._open -= 1
                if self._open == 0 and worker is not None:
                    self._spare.append(worker)  # for the retries
                    worker = None
                self._lock.notify_all()
        if worker is not None:
            self._retire(worker)

    def _retire(self, worker: WorkerProcess) -> None:
        self._live.discard(worker)
        worker.close()

    def _attempts(
        self, worker: WorkerProcess | None, test: ProgramTest
    ) -> tuple[WorkerProcess | None, dict[str, Any]]:
        """Run a test, on a fresh worker where the old one breaks; also the worker to go on with."""
        job = {name: getattr(test, name) for name in ProgramTest.__slots__}
        job["limits"] = self.limits.for_mode(test.mode, test.timeout)
        why = ""
        for _ in range(ATTEMPTS):
            if self._closing:
                break
            if worker is None:
                worker = WorkerProcess(self.sandbox.tier, self.limits, self._readable)
                self._live.add(worker)
            try:
                if "refused" in worker.said:
                    raise frames.Closed(str(worker.said["refused"]))
                answer = worker.run(job)
            except (frames.Closed, frames.Garbage) as error:
                answer = {"class": "broken", "message": str(error)}
            if answer["class"] not in ("broken", "infrastructure"):
                return worker, answer
            why = str(answer["message"])
            self._retire(worker)
            worker = None
        return None, {"class": "broken", "message": why}

    @staticmethod
    def _settle(future: Future[Outcome], answer: dict[str, Any], retried: bool = False) -> None:
        if answer["class"] == "broken":
            future.set_exception(
                SantagenError(
                    f"The sandbox failed {ATTEMPTS} times on one program: {answer['message']}.",
                    "Nothing was scored for it; see `santagen doctor`, and go on with --resume.",
                )
            )
            return
        future.set_result(
            Outcome(
                kind=answer["class"],
                exception=answer.get("exception", ""),
                message=answer.get("message", ""),
                cpu_seconds=answer["cpu"],
                wall_seconds=answer["wall"],
                strays=answer["strays"],
                retried=retried,
            )
        )

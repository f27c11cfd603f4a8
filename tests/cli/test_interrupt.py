"""Signals stop a run between two samples, never inside one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from santagen.cli.interrupt import Interrupts, import_whole


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_keyboard_interrupt(number: signal.Signals) -> None:
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        send(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_shield_delays_it(number: signal.Signals) -> None:
    finished = False
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        with interrupts.shielded():
            send(number)
            finished = True
        raise AssertionError("the signal was lost")
    assert finished


def test_a_shield_that_waits_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 1.0])
    monkeypatch.setattr("santagen.cli.interrupt.time.monotonic", lambda: next(clock))
    passed = 0
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.shielded():
            for _ in range(3):
                send(signal.SIGINT)
                passed += 1
        assert passed == 2 and interrupts.stalled


def test_an_error_inside_the_shield_comes_first() -> None:
    with Interrupts() as interrupts, pytest.raises(OSError, match="disk"), interrupts.shielded():
        send(signal.SIGTERM)
        raise OSError("disk")


def test_the_former_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module with a code that is run in the middle of its import; returns its name."""

    def write(code: str) -> str:
        name = f"half_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(f"import os, signal\n{code}\nwhole = True\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        return name

    return write


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_an_import(
    importing: Callable[[str], str], number: signal.Signals
) -> None:
    name = importing(f"os.kill(os.getpid(), {int(number)})")
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            import_whole("os", name)
        assert interrupts.last == number
        assert sys.modules.pop(name).whole
        with pytest.raises(KeyboardInterrupt):  # the handlers are those of before
            send(number)


def test_a_second_signal_does_not_wait(importing: Callable[[str], str]) -> None:
    name = importing("for _ in range(2):\n    os.kill(os.getpid(), signal.SIGINT)")
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        import_whole(name)
    assert name not in sys.modules


def test_a_signal_that_is_ignored_stays_so(importing: Callable[[str], str]) -> None:
    name = importing("os.kill(os.getpid(), signal.SIGINT)")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import_whole(name)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert sys.modules.pop(name).whole


def test_a_failed_import_is_told_and_the_handlers_come_back(
    importing: Callable[[str], str],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ImportError, match="no such thing"):
        import_whole(importing("raise ImportError('no such thing')"))
    assert signal.getsignal(signal.SIGINT) is before

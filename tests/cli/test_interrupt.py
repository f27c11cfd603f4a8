"""Signals stop a run between two samples, never inside one."""

from __future__ import annotations

import os
import signal

import pytest

from santagen.cli.interrupt import Interrupts


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


def test_an_error_inside_the_shield_comes_first() -> None:
    with Interrupts() as interrupts, pytest.raises(OSError, match="disk"), interrupts.shielded():
        send(signal.SIGTERM)
        raise OSError("disk")


def test_the_former_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

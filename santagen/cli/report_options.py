"""The options of `santagen report`, one line each; those it shares with generate are `cli.options`'."""

from __future__ import annotations

from dataclasses import dataclass

from santagen.cli.options import like_generate
from santagen.cli.settings import SWITCH, TEXT, TEXTS, option

# fmt: off
# ruff: noqa: E501


@dataclass(frozen=True)
class ReportOptions:
    """Everything `santagen report` can be told."""

    results: tuple[str, ...] = option("Report", TEXTS, (), help="Results of santagen eval, and outputs or manifests of santagen generate.")
    output: str | None = option("Report", TEXT, None, "--output", "-o", help="The page to write; - is standard output.", shown_default="report.html")
    overwrite: bool = option("Report", SWITCH, False, "--overwrite", help="Replace a page that exists.")
    config: str | None = like_generate("config", panel="Report")
    show_config: bool = like_generate("show_config", panel="Report")
    quiet: bool = like_generate("quiet", panel="Report")

"""The options of `santagen doctor`, one line each; those it shares with generate are `cli.options`'."""

from __future__ import annotations

from dataclasses import dataclass

from santagen.cli.options import like_generate
from santagen.cli.settings import SWITCH, option

# fmt: off
# ruff: noqa: E501


@dataclass(frozen=True)
class DoctorOptions:
    """Everything `santagen doctor` can be told."""

    model: str | None = like_generate("model", panel="Check", help="Check this model too: hub id or local directory.")
    json: bool = option("Check", SWITCH, False, "--json", help="Write everything as one JSON object on standard output.")
    config: str | None = like_generate("config", panel="Check")
    show_config: bool = like_generate("show_config", panel="Check")

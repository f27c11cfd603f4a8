"""Help in panels, as plain text.

Typer's own panels are drawn by rich, whose import costs more than everything else `--help` does.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PanelCommand(TyperCommand):
    """A command whose help groups arguments and options under their panels' names."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        last = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if parameter.param_type_name == "argument":
                several = "..." if parameter.nargs == -1 else ""
                record = (f"{parameter.metavar}{several}", getattr(parameter, "help", None) or "")
            if record is None:
                continue
            panel = getattr(parameter, "rich_help_panel", None)
            if panel is None:
                last.append(record)
            else:
                panels.setdefault(panel, []).append(record)
        if last:
            panels["Help"] = last
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=34)

"""`santagen report`: results and runs in, one page out. What is on the page is `report`'s."""

from __future__ import annotations

from pathlib import Path

from santagen.cli.console import Console
from santagen.cli.interrupt import import_whole
from santagen.cli.output import refuse_read, settings_files, with_temporary, write_output
from santagen.cli.report_options import ReportOptions
from santagen.cli.settings import Resolved
from santagen.errors import SantagenError
from santagen.evaluation.result import samples_path
from santagen.io.manifest import ENDING, manifest_path
from santagen.io.output_place import check_place, errors_path

DEFAULT_OUTPUT = "report.html"


def run(settings: Resolved[ReportOptions]) -> int:
    """The command; returns the exit code."""
    options = settings.options
    if not options.results:
        raise SantagenError(
            "report takes at least one result.", "As in santagen report RESULT.json -o report.html."
        )
    output = options.output or DEFAULT_OUTPUT
    if output != "-":
        _check_output(Path(output), options)
    import_whole("numpy")
    from santagen.cli.report_inputs import read_report
    from santagen.report.page import render

    page = render(read_report(options.results)).encode("utf-8")
    write_output("-o", output, [page])
    if output != "-":
        Console(options.quiet).say(f"{len(page):,} bytes written to {output}")
    return 0


def _check_output(output: Path, options: ReportOptions) -> None:
    written = with_temporary(output)
    refuse_read("-o", written, options.results, "one of the results")
    read = [file for path in options.results for file in _files_of(Path(path))]
    refuse_read("-o", written, [*read, *settings_files(options)])
    check_place(output)
    if output.exists() and not options.overwrite:
        raise SantagenError(f"{output} exists.", "Use --overwrite to replace it, or another -o.")


def _files_of(path: Path) -> list[Path]:
    """What may be read together with a result or an output of this name, there or not."""
    if path.is_dir():
        return []
    output = path.with_name(path.name.removesuffix(ENDING) or path.name)
    return [output, samples_path(output), manifest_path(output), errors_path(output)]

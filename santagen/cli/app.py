"""The `santagen` program: its commands, its exit codes, and how a fault reaches the user.

    0    all done
    1    finished, but some rows failed
    2    usage, configuration or environment
    130  interrupted

What a command needs is imported when it runs: the help loads neither torch nor anything else that
is slow. How a function becomes a command is in commands.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from santagen import __version__
from santagen.cli.bench_options import BenchOptions
from santagen.cli.commands import COMMANDS, Answer, Command, ReaderGone, app, command
from santagen.cli.console import Console, report_error
from santagen.cli.convert_options import ConvertOptions
from santagen.cli.doctor_options import DoctorOptions
from santagen.cli.ending import end_if_lost, end_now
from santagen.cli.eval_options import EvalOptions
from santagen.cli.inspect_options import InspectOptions
from santagen.cli.interrupt import INTERRUPTED, import_whole
from santagen.cli.libraries import quiet_libraries
from santagen.cli.options import GenerateOptions
from santagen.cli.report_options import ReportOptions
from santagen.cli.settings import Resolved
from santagen.cli.stderr import best_effort
from santagen.cli.told import has_launcher
from santagen.errors import SantagenError

__all__ = ["COMMANDS", "Command", "app", "main", "run_program"]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"santagen {__version__}")
        raise typer.Exit()


@app.callback(
    epilog="santagen COMMAND --help lists a command's options, with examples. To start: "
    "santagen generate prompts/quickstart.jsonl"
)
def santagen(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:  # nothing was asked for: the help is the message
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


@command(
    GenerateOptions,
    "santagen generate prompts.jsonl -o out.jsonl",
    "santagen generate prompts.jsonl -m DIR -o out.jsonl --resume",
    "santagen generate prompts.jsonl --temperature 0.8 --top-p 0.95 -n 20",
    r"santagen generate - --stop '\ndef' --max-tokens 1k < prompts.jsonl",
    "santagen generate prompts.jsonl -m DIR --dry-run",
)
def generate(settings: Resolved[GenerateOptions]) -> int:
    """Complete prompts, each sample one JSON line.

    A row of PROMPTS is a JSON object with prompt, with prefix and suffix, or with prompt_token_ids;
    it may bring its own task_id, max_tokens, temperature, top_p, top_k, min_p, repetition_penalty,
    n, seed, stop and trim_overlap. Without -o samples go to standard output; messages go to
    standard error. Rows that can't be used are listed in OUT.errors.jsonl, and the others finish.

    Exit code 0 says that all was done, 1 that some rows failed, 2 that usage, configuration or
    environment were at fault, 130 that it was interrupted. What was finished is kept.
    """
    from santagen.cli.generate import run

    return run(settings)


@command(
    EvalOptions,
    "santagen eval mini --allow-code-execution",
    "santagen eval humaneval -m DIR -n 200 --allow-code-execution -o t02.json",
    "santagen eval samples.jsonl --allow-code-execution -o scored.json",
    "santagen eval --compare t02.json scored.json",
)
def eval(settings: Resolved[EvalOptions]) -> int:
    """Score a model on a task, or a file of samples.

    TARGETS is a task, for which samples are generated and their programs run meanwhile; or a file
    of samples that anyone made; or, with --compare, two results. Programs that a model wrote run in
    a sandbox, and only where --allow-code-execution agrees to it.
    """
    from santagen.cli.eval import run

    return run(settings)


@command(
    InspectOptions,
    "santagen inspect DIR --memory 24GiB",
    "santagen inspect bigcode/gpt_bigcode-santacoder --json",
)
def inspect(settings: Resolved[InspectOptions]) -> int:
    """Tell what a model holds and what fits, from its headers.

    The report goes to standard error, --json to standard output. Exit code 2 says that a run would
    be refused, and why is printed. Of a hub model only small files and headers are fetched, but
    .bin files are downloaded whole.
    """
    import_whole("numpy")
    from santagen.cli.inspect import run

    return run(settings)


@command(
    BenchOptions,
    "santagen bench -m DIR",
    "santagen bench --random-weights santacoder --batch-sizes 1,64,1k",
)
def bench(settings: Resolved[BenchOptions]) -> int:
    """Measure speed per batch size, beside the hardware's limit.

    The table goes to standard error; --output-json writes every number.
    """
    from santagen.cli.bench import run

    return run(settings)


@command(
    ConvertOptions,
    "santagen convert SRC DST --dtype bfloat16",
    "santagen convert GPTQ_DIR DST --dequantize --max-shard-size 2G",
)
def convert(settings: Resolved[ConvertOptions]) -> int:
    """Rewrite a checkpoint of any layout as standard safetensors.

    DST is loadable by transformers too; it appears once it is whole and compared. A GPTQ checkpoint
    asks for --dequantize.
    """
    from santagen.cli.convert import run

    return run(settings)


@command(
    ReportOptions,
    "santagen report a.json b.json out.jsonl -o report.html",
)
def report(settings: Resolved[ReportOptions]) -> int:
    """Show results and runs on one page, with pictures.

    The page needs no network. Two results of one task are compared, problem by problem.
    """
    from santagen.cli.report import run

    return run(settings)


@command(
    DoctorOptions,
    "santagen doctor",
    "santagen doctor -m bigcode/gpt_bigcode-santacoder",
    "santagen doctor --json > machine.json",
)
def doctor(settings: Resolved[DoctorOptions]) -> int:
    """Tell what this machine offers, what stops a run, and the remedy.

    Looks at torch, the GPUs, Triton and the attention backends, cores, memory, disk, the hub's
    cache and the sandbox of eval, in a few seconds. The report goes to standard error, --json to
    standard output. Exit code 2 says that generate could not run.
    """
    from santagen.cli.doctor import run

    return run(settings)


def run_program(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every fault is reported here.

    What can't be said on standard error changes nothing about the run.
    """
    with best_effort():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        code = app(args=list(arguments), prog_name="santagen", standalone_mode=False)
        code = code if isinstance(code, int) else 0
        if code == INTERRUPTED and not isinstance(code, Answer):
            raise KeyboardInterrupt
        return code
    except SantagenError as error:
        report_error(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        if not has_launcher():  # which says it
            Console().warn("interrupted.")
        return INTERRUPTED
    except (BrokenPipeError, ReaderGone):
        # The reader of stdout has gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        report_error(SantagenError("Standard output was closed before the run was finished."))
        return 2
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's own: an unknown option, a missing value
            where = getattr(getattr(error, "ctx", None), "command_path", None) or "santagen"
            message = error.format_message().strip()
            report_error(SantagenError(message, f"{where} --help lists what there is."))
        else:
            report_error(error)
            end_if_lost(error, 2)
        return 2


def main() -> None:
    """Run this process's command line and end it with the exit code."""
    quiet_libraries(os.environ)
    code = run_program(sys.argv[1:])
    if code == INTERRUPTED:
        end_now(code)  # Python's own end is by SIGINT where one came while it ran an exec()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # all is done: nothing is left to be told
    sys.exit(code)

"""How a function and its options dataclass become a command of the program: flags, help, examples.

The commands themselves are in app. Settings are resolved, from flags, environment and file, by
settings; Typer only splits the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature, cleandoc
from typing import Annotated, Any, Protocol, TypeVar

import typer

from santagen.cli.console import rank
from santagen.cli.panels import PanelCommand
from santagen.cli.settings import Resolved, Setting, resolve, settings_of

CONTEXT = {"help_option_names": ["--help", "-h"], "max_content_width": 100}

app = typer.Typer(
    name="santagen",
    help="Fast, exact batch code generation for SantaCoder, StarCoder and their family.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


class ShowsConfig(Protocol):
    """What every options dataclass has."""

    @property
    def show_config(self) -> bool: ...


Options = TypeVar("Options", bound=ShowsConfig)


@dataclass(frozen=True)
class Command:
    """A command as its help and the reference show it; `options` is the dataclass behind it."""

    name: str
    about: str
    options: type
    examples: tuple[str, ...]


class ReaderGone(Exception):
    """Standard output was closed before all was written."""


class Answer(int):
    """The exit code of a command, which has said why. Typer's own are plain numbers: 130 for a
    Ctrl-C outside the command, of which it says nothing."""


COMMANDS: list[Command] = []


def command(
    options: type[Options], *examples: str
) -> Callable[[Callable[[Resolved[Options]], int]], None]:
    """Register a function as a command that takes the settings of an options dataclass.

    The function returns the exit code; its name is the command's and its docstring, with the
    examples, the help. With --show-config it is not called.
    """

    def register(body: Callable[[Resolved[Options]], int]) -> None:
        name = body.__name__

        def run(**flags: Any) -> None:
            names = [known.name for known in COMMANDS]
            settings = resolve(options, name, flags, os.environ, names)
            shows = settings.options.show_config
            try:
                code = _show(settings, name) if shows else body(settings)
            except KeyboardInterrupt:  # for Typer an exit code like any other, of which none tells
                raise typer.Abort() from None
            except BrokenPipeError as error:  # alike, and the code is that of failed rows
                raise ReaderGone from error
            raise typer.Exit(Answer(code))

        parameters = [_parameter(setting) for setting in settings_of(options)]
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        about = cleandoc(body.__doc__ or "")
        COMMANDS.append(Command(name, about, options, examples))
        # \b: the lines up to the next empty one stay as they are.
        run.__doc__ = "\n".join([about, "", "\b", "Examples:", *(f"  {e}" for e in examples)])
        epilog = (
            f"Every option is also an environment variable, SANTAGEN_{name.upper()}_<OPTION>, "
            "and a key of a --config file. Flags win over the environment, which wins over "
            "the file."
        )
        app.command(name, cls=PanelCommand, epilog=epilog, context_settings=CONTEXT)(run)

    return register


def _show(settings: Resolved[Options], command: str) -> int:
    from santagen.cli.describe import show_config

    if rank() == 0:
        print(show_config(settings, command))
    return 0


def _parameter(setting: Setting) -> Parameter:
    """The setting as Typer sees it: only text to split off the command line, no defaults."""
    kind = setting.kind
    text: Any = bool if kind.flag else list[str] if kind.many else str
    about: Any
    if setting.flags:
        about = typer.Option(
            *setting.flags,
            metavar=None if kind.flag else kind.metavar,
            help=with_default(setting),
            show_default=False,
            rich_help_panel=setting.panel,
        )
    else:
        about = typer.Argument(
            metavar=setting.name.upper(),
            help=setting.help,
            show_default=False,
            rich_help_panel=setting.panel,
        )
    return Parameter(
        setting.name,
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[text | None, about],
    )


def with_default(setting: Setting) -> str:
    """The setting's help, with its default where it has one."""
    shown, default = setting.shown_default, setting.default
    if shown is None and not setting.kind.flag and default not in (None, ()):
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{setting.help} [default: {shown}]" if shown else setting.help

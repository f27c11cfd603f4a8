"""What is written about the command line is what it does.

REFERENCE.md, the examples of the help, the README's commands, the help of a bare `santagen`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from santagen.cli.app import COMMANDS, Command
from santagen.cli.settings import resolve, settings_of
from santagen.io.batch_rows import UNSUPPORTED
from santagen.io.row_fields import ID_FIELDS, PROMPT_FIELDS, SAMPLING_FIELDS
from tests.cli import reference
from tests.cli.helpers import Cli

ROOT = reference.PATH.parent
REGENERATE = "python -m tests.cli.reference writes it anew"
BY_NAME = {command.name: command for command in COMMANDS}
EXAMPLES = [(c.name, example) for c in COMMANDS for example in c.examples]


def words_of(line: str) -> list[str]:
    """The words of a shell line, without comment and redirections."""
    line = re.split(r"\bsantagen (?=[a-z])", line)[-1]
    return shlex.split(re.sub(r"\s[<>]\s*\S+", "", line), comments=True)


def check_parses(words: list[str]) -> None:
    """The command exists, and each word of it is an option that it has, with a value it takes."""
    from typer.main import get_command

    from santagen.cli.app import app

    command = BY_NAME[words[0]]
    parser = get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    context = parser.make_context(words[0], words[1:])
    resolve(command.options, command.name, context.params, {})


def readme_commands() -> list[str]:
    text = "\n".join((ROOT / name).read_text() for name in ("README.md", "prompts/README.md"))
    blocks = re.findall(r"```bash[^\n]*\n(.*?)```", text, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`(santagen [a-z]+ [^`]+)`", text)
    lines = [line.replace("--help", "") for line in lines]
    return [line for line in lines if re.search(r"\bsantagen [a-z]+\b", line)]


def test_the_reference_is_what_the_program_says() -> None:
    assert reference.PATH.read_text(encoding="utf-8") == reference.render(), REGENERATE


def test_the_reference_has_every_option_of_every_command() -> None:
    text = reference.render()
    for command in COMMANDS:
        part = text.split(f"## santagen {command.name}\n")[1].split("\n## ")[0]
        for setting in settings_of(command.options):
            for flag in setting.flags:
                assert f"`{flag}`" in part


def test_the_reference_has_every_field_of_a_row() -> None:
    prompts = reference.render().split("## Prompts\n")[1].split("\n## ")[0]
    row, body = prompts.split("| field of `body` |")
    for name in (*ID_FIELDS, *PROMPT_FIELDS, *SAMPLING_FIELDS, "body"):
        assert f"`{name}`" in row
    own = (*UNSUPPORTED, "messages", "logprobs", "best_of")
    for name in (*PROMPT_FIELDS, *SAMPLING_FIELDS, *own):
        assert f"`{name}`" in body


def test_the_help_of_generate_names_every_setting_of_a_row() -> None:
    about = next(command.about for command in COMMANDS if command.name == "generate")
    assert not [name for name in SAMPLING_FIELDS if not re.search(rf"\b{name}\b", about)]


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_examples_are_of_their_command_and_parse(name: str, example: str) -> None:
    words = words_of(example)
    assert words[0] == name
    check_parses(words)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_help_shows_its_examples_as_they_are(cli: Cli, command: Command) -> None:
    shown = cli(command.name, "--help").out
    assert command.examples
    for example in command.examples:
        assert f"\n    {example}\n" in shown


@pytest.mark.parametrize("line", readme_commands())
def test_the_readme_s_commands_parse(line: str) -> None:
    check_parses(words_of(line))


def test_a_command_that_does_not_parse_is_seen() -> None:
    for line in ("santagen generate --no-such", "santagen bench --batch-sizes x", "santagen eat"):
        with pytest.raises(Exception, match=r"no-such|batch-sizes|eat"):
            check_parses(words_of(line))


def test_files_that_are_linked_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "prompts/README.md"):
        page = ROOT / name
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{name} links {target}"


def test_modules_that_are_named_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        for module in re.findall(r"python -m (tests[\w.]+)", (ROOT / name).read_text()):
            assert Path(ROOT, *module.split(".")).with_suffix(".py").is_file(), module


def test_bare_santagen_shows_the_help_and_ends_with_2(cli: Cli) -> None:
    ran, wanted = cli(), cli("--help").out
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == wanted
    assert "error:" not in ran.err


def test_every_command_s_line_is_whole_in_the_list(cli: Cli) -> None:
    shown = cli("--help").out
    for command in COMMANDS:
        assert re.search(rf"\n  {command.name} .*\.\n", shown)
    assert "..." not in shown.split("Commands:")[1]

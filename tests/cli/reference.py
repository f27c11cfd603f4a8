"""Writes REFERENCE.md, the manual of the command line, from the program's own tables.

    python -m tests.cli.reference

Options, defaults, examples and the fields of rows come from the code; only what no table holds is
written here. `test_reference` fails where the file is not what this writes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from santagen.cli.app import COMMANDS, Command
from santagen.cli.commands import with_default
from santagen.cli.settings import Setting, settings_of, variable
from santagen.io.batch_rows import UNSUPPORTED
from santagen.io.row_fields import ID_FIELDS, PROMPT_FIELDS, SAMPLING_FIELDS

PATH = Path(__file__).resolve().parents[2] / "REFERENCE.md"
WIDTH = 100

HEAD = """\
<!-- Written by python -m tests.cli.reference from the program's tables; a test compares them. -->
# santagen: reference

`santagen COMMAND --help` says the same in the terminal. `python -m santagen` is the same program,
which is how torchrun starts it.
"""

ROWS = """\
## Prompts

PROMPTS are files: `.jsonl`, `.jsonl.gz`, `.json` (a list of rows, or of texts), `-` (JSONL on
standard input), or any other text file, which is one whole prompt with its path as the id. Lines
end at LF alone; CRLF and a byte order mark are accepted. With `--dataset` rows come from the hub,
or from a local parquet, csv or JSON file, and `--prompt-column` names the column. The input is
checked before the model loads; a bad row is reported with its line, and the others run.

| field of a row | meaning |
|---|---|
| `prompt` | text to continue, taken to the letter |
| `prefix` and `suffix` | infilling: the model writes what belongs between, in its own FIM tokens |
| `prompt_token_ids` | ids in place of text |
| {ids} | the row's id, the first of these there is, which must be unique; else its number, from 0 |
| {sampling} | override the command line for this row; `stop` is a text or a list, `[]` is none |
| `custom_id` with `body` | a row of OpenAI's batch API; `--format openai-batch` answers in kind |
| anything else | ignored, or copied to the samples with `--keep FIELD` |

A field that is null counts as absent. A row of a batch file is for completions:
`{{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {{"prompt": "def f("}}}}`.

| field of `body` | meaning |
|---|---|
| `prompt` | a text, a list of one text, or ids; the prefix where there is a `suffix` too |
| {body_prompts} | as in any row |
| {body_settings} | as in any row |
| `max_completion_tokens` | `max_tokens`, where that is absent |
| `logprobs` | N as in `--logprobs N`; or true, with N in `top_logprobs` |
| `best_of` | refused, unless it is 1 or `n` |
| `messages`, {unsupported} | refused: there is nothing that would do the same |
| anything else, such as `model`, `stream`, `user` | ignored, or copied with `--keep FIELD` |

## Output

One JSON object per sample and line, appended as samples end, and put in input order when all have
ended:

| field | meaning |
|---|---|
| `task_id`, `index` | the row's id, and which of its n samples this is |
| `completion` | the new text; null where the model has no tokenizer |
| `finish_reason` | `stop` at an end token or a stop text, else `length` |
| `stop_reason` | the stop text, the id of an end token, or null |
| `usage` | `prompt_tokens` and `completion_tokens` |
| `prompt` | with `--echo` |
| `token_ids` | with `--token-ids`, and always where the model has no tokenizer |
| `logprobs` | with `--logprobs N`: of each token `id`, `logprob` and `top`, N pairs of the two |
| `truncated_tokens` | tokens that `--truncate left` took from the prompt |
| `trimmed_overlap` | text that `--trim-overlap` took from the end |

With `--format openai-batch` a line is a row: `id`, `custom_id`, `error` and `response`, whose
`body` holds `choices`, a sample each, and `usage`. `response` is null for a row that failed.

| file | holds |
|---|---|
| `OUT.errors.jsonl` | rows that failed: `task_id`, `line`, `error`, `hint` |
| `OUT.manifest.json` | settings, model fingerprint, versions, counts, timing; never a secret |
"""

TAIL = """\
## Exit status

| code | meaning |
|---|---|
| 0 | all done |
| 1 | finished, but some rows failed |
| 2 | usage, configuration or environment: one message and one hint say what and how to mend it |
| 130 | interrupted; what was finished is kept, and `--resume` goes on |

torchrun passes only 0 on: its own status is 1 where a process ended with any other. It then also
prints a traceback of its own, which ends in `ChildFailedError`, even where the run is finished and
only some rows failed; santagen's messages are above it, and the manifest says whether the run is
`complete`. A run goes on with the same torchrun command and `--resume`, on as many nodes and
processes as there are by then. `santagen generate -tp` or `-dp` passes the status on as it is.

## Environment

| variable | meaning |
|---|---|
| `SANTAGEN_<COMMAND>_<OPTION>` | an option; a repeatable one takes one value or a JSON list |
| `SANTAGEN_DEBUG=1` | show the traceback of an error |
| `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE` | the hub's token, cache and offline mode |
| `HF_ALLOW_CODE_EVAL=1` | as `--allow-code-execution` |
| `CUDA_VISIBLE_DEVICES` | the GPUs to use |
| `OMP_NUM_THREADS` | threads on the CPU |
| `MKL_CBWR` | kept where set; else strict on Intel's processors: no row changes another's bits |
| `NO_COLOR` | no colour in messages |
"""


def render() -> str:
    """The whole file."""
    rows = ROWS.format(
        ids=_names(ID_FIELDS),
        sampling=_names(SAMPLING_FIELDS),
        body_prompts=_names(tuple(name for name in PROMPT_FIELDS if name != "prompt")),
        body_settings=_names(SAMPLING_FIELDS),
        unsupported=_names(tuple(UNSUPPORTED)),
    )
    commands = [_command(command) for command in COMMANDS]
    return "\n".join([HEAD, *commands, rows, TAIL])


def _names(fields: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in fields)


def _command(command: Command) -> str:
    settings = settings_of(command.options)
    places = " ".join(_argument(setting) for setting in settings if not setting.flags)
    lines = [f"## santagen {command.name}", "", f"    santagen {command.name} [OPTIONS] {places}"]
    lines = [line.rstrip() for line in lines]
    for paragraph in command.about.split("\n\n"):
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), WIDTH)]
    lines += ["", "```bash", *command.examples, "```"]
    panels: dict[str, list[Setting]] = {}
    for setting in settings:
        panels.setdefault(setting.panel, []).append(setting)
    for panel, members in panels.items():
        lines += ["", f"| {panel} | |", "|---|---|", *map(_row, members)]
    lines += ["", *_sources(command, settings), ""]
    return "\n".join(lines)


def _argument(setting: Setting) -> str:
    return f"[{setting.name.upper()}{'...' if setting.kind.many else ''}]"


def _row(setting: Setting) -> str:
    spelling = ", ".join(f"`{flag}`" for flag in setting.flags) or f"`{_argument(setting)}`"
    value = f" `{setting.kind.metavar}`" if setting.flags and setting.kind.metavar else ""
    return f"| {_cell(spelling + value)} | {_cell(with_default(setting))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _sources(command: Command, settings: list[Setting]) -> Iterator[str]:
    """Where else its options may be set; which ones a file doesn't take."""
    shown = next(setting for setting in settings if setting.flags and setting.in_file)
    barred = ", ".join(f"`{setting.name}`" for setting in settings if not setting.in_file)
    text = (
        f"Environment: `{variable(command.name, shown)}` for `{shown.flags[0]}`, and so for each. "
        f"File: `--config FILE.toml` with `{shown.name} = ...`, at the top or under "
        f"`[{command.name}]`, for all but {barred}. Flags win over the environment, which wins "
        "over the file."
    )
    yield from textwrap.wrap(text, WIDTH)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")

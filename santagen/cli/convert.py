"""`santagen convert`: a checkpoint of any supported layout, rewritten as standard safetensors.

Finds the source, keeps other runs off the destination, and says what was done; the conversion
itself is checkpoint.convert's.
"""

from __future__ import annotations

import os
from pathlib import Path

from santagen.cli.console import Console
from santagen.cli.convert_options import ConvertOptions
from santagen.cli.interrupt import ENGINE, INTERRUPTED, Interrupts, import_whole
from santagen.cli.labelled import many, size
from santagen.cli.settings import Resolved
from santagen.errors import SantagenError
from santagen.io.files import OutputLock


def run(settings: Resolved[ConvertOptions]) -> int:
    """The command; returns the exit code."""
    options = settings.options
    if options.src is None or options.dst is None:
        raise SantagenError(
            "convert takes the model to convert and the directory to write.",
            "As in santagen convert ./santacoder ./santacoder-standard.",
        )
    console, destination = Console(options.quiet), Path(os.path.expanduser(options.dst))
    if destination.name in ("", ".."):
        raise SantagenError(
            f"convert can't write to {options.dst!r}: it makes its folder anew, under a name.",
            "Name the folder, as in ./santacoder-standard, or give its whole path.",
        )
    try:
        with Interrupts():
            _convert(options, options.src, destination, console)
    except KeyboardInterrupt:
        console.warn("interrupted before the conversion was finished")
        return INTERRUPTED
    return 0


def _convert(options: ConvertOptions, src: str, destination: Path, console: Console) -> None:
    import_whole(*ENGINE)
    from santagen.checkpoint.convert import cannot_write, convert
    from santagen.checkpoint.source import resolve_model

    source = resolve_model(src, revision=options.revision, token=options.hf_token)
    lock = OutputLock(destination, "another folder")
    try:
        if destination.parent.is_dir():  # else convert says so
            lock.take()
    except OSError as error:
        raise cannot_write(destination, error) from error
    try:
        done = convert(
            source.path, destination, dtype=options.dtype, dequantize=options.dequantize,
            max_shard_bytes=options.max_shard_size, overwrite=options.overwrite, say=console.say,
        )  # fmt: skip
    finally:
        lock.release()
    for note in done.notes:
        console.warn(note)
    console.say(f"{source.name} ({done.source}) is now {destination}: Linear, fused c_attn")
    console.say(
        f"{many(len(done.files), 'file')}, {size(done.nbytes)} of {done.dtype} "
        f"({done.dtype_why}), read back and compared"
    )
    console.say(f"carried over: {', '.join(done.carried) or 'no tokenizer files'}")

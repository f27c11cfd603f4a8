"""The program, as `python -m santagen` and as the `santagen` script.

Answers a Ctrl-C or SIGTERM that comes while the command line's modules are loaded; all else is
cli.app's.
"""

from __future__ import annotations

import os
import signal
import sys

RANK = "RANK"  # in the environment of a process that a launcher started, which tells of its end


def main() -> None:
    try:
        if RANK not in os.environ:
            for number in (signal.SIGINT, signal.SIGTERM):  # a shell's & has the former ignored
                signal.signal(number, signal.default_int_handler)
        from santagen.cli.app import main as run

        run()
    except KeyboardInterrupt:  # before cli.app could tell of it, or while it did
        if sys.stderr is not None and RANK not in os.environ:  # None: the shell's 2>&-
            print("warning: interrupted.", file=sys.stderr, flush=True)
        os._exit(130)  # cli.interrupt's code; Python's own end could be by SIGINT


if __name__ == "__main__":
    main()

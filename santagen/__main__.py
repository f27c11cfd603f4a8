"""`python -m santagen`: the same program as the `santagen` script."""

from __future__ import annotations

from santagen.cli.app import main

if __name__ == "__main__":
    main()

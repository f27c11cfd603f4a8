"""What a program leaves where no namespace sweeps it away: child processes and files."""

from __future__ import annotations

import os
import subprocess


def children() -> list[int]:
    """Processes whose parent is this one, by /proc."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if int(fields[1]) == own:
                found.append(int(name))
    return found


def empty_folder(folder: str) -> None:
    """Remove what is in `folder`, following no link; folders a program closed to us are opened
    again.

    By find, which walks trees deeper than a path can be long.
    """
    inside = ["find", folder, "-mindepth", "1"]
    for more in (
        ["-type", "d", "!", "-perm", "-700", "-exec", "chmod", "700", "{}", ";"],
        ["-delete"],
    ):
        subprocess.run(inside + more, stderr=subprocess.DEVNULL, check=False)
    if os.listdir(folder):
        raise OSError(f"the scratch folder {folder} can't be cleared")

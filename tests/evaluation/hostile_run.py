"""Runs the hostile programs in one tier and prints what became of them; a script, so that any user
can.

python hostile_run.py TIER ROOT_OF_THE_REPOSITORY FOLDER_TO_PROTECT [NAME ...]
"""

from __future__ import annotations

import json
import os
import sys


def main(tier: str, root: str, outside: str, *names: str) -> None:
    sys.path.insert(0, root)
    from santagen.evaluation.execution import Pool
    from santagen.evaluation.outcomes import ProgramTest
    from tests.evaluation.hostile import HOSTILE, PROMPT, RIGHT, TEST

    chosen = list(names or HOSTILE)
    programs = [
        HOSTILE[name].replace("{outside}", outside).replace("{port}", "9") for name in chosen
    ]
    with Pool(workers=4, tier=tier, unsafe=True) as pool:
        tests = [
            ProgramTest(PROMPT + text, test=TEST, entry=("solve",), timeout=0.4)
            for text in programs
        ]
        kinds = [outcome.kind for outcome in pool.run(tests)]
        right = ProgramTest(PROMPT + RIGHT, test=TEST, entry=("solve",), timeout=10)
        after = pool.run([right])[0].kind
        print(
            json.dumps(
                {
                    "uid": os.getuid(),
                    "tier": pool.sandbox.tier,
                    "kinds": dict(zip(chosen, kinds, strict=True)),
                    "after": after,
                }
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

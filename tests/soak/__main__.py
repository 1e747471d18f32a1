"""Run the soak: `python -m tests.soak --minutes 60 [--seed 7] [--json]`. The exit code is 1 if anything is violated.

The seed determines the schedule of faults, but not what each process does at that moment: a run can be repeated, not
replayed exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from oncemq.tools.faults.processes import Guardian
from tests.soak.report import box_of
from tests.soak.run import Run, Scale

_SEEDS_MAX = 1_000_000


def main() -> int:
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else SystemRandom().randrange(_SEEDS_MAX)
    folder = Path(tempfile.mkdtemp(prefix="oncemq-soak-", dir=arguments.folder))
    if _is_in_memory(folder):
        folder.rmdir()
        raise SystemExit(f"{folder.parent} is in memory, so that a sync costs nothing: choose a disk with --folder")
    say = _ignore if arguments.json else _say
    scale = Scale(arguments.minutes, arguments.load_s, arguments.pause_s, arguments.settle_s)
    say(f"seed {seed}, {arguments.minutes:g} minutes, in {folder}")
    # If this process does not get to the end, the guardian kills the broker and deletes the folder.
    guardian = Guardian(folder / "data", folder)
    result = Run(scale, seed, folder, say, arguments.sabotage).run()
    guardian.dismiss()
    if result.is_good or arguments.sabotage:
        shutil.rmtree(folder)
    else:
        result.folder = str(folder)
    sys.stdout.write(json.dumps(result.as_object()) + "\n" if arguments.json else box_of(result) + "\n")
    return 0 if result.is_good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Mixed load over all protocols, with kills and hostile peers.")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration of the run")
    parser.add_argument("--seed", type=int, help="seed of the faults; random by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and nothing else")
    parser.add_argument("--folder", help="where the journal is; must be a real disk")
    parser.add_argument("--load-s", type=float, default=50.0, help="seconds of load in each round")
    parser.add_argument("--pause-s", type=float, default=0.05, help="mean pause of a producer after a message")
    parser.add_argument("--settle-s", type=float, default=60.0, help="time at the end to give everything back")
    parser.add_argument(
        "--sabotage",
        choices=("lose", "double", "leak"),
        action="append",
        default=[],
        help="violate a guarantee on purpose, in a further round: the verdict must be BAD; may be repeated",
    )
    return parser.parse_args()


def _is_in_memory(folder: Path) -> bool:
    """Whether a folder is on tmpfs: no file system of a disk has its magic number."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    device = os.stat(folder).st_dev
    kinds = {os.stat(mount[1]).st_dev: mount[2] for mount in mounts if os.path.isdir(mount[1])}
    return kinds.get(device) in ("tmpfs", "ramfs")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _ignore(line: str) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())

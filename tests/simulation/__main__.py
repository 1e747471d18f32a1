"""`python -m tests.simulation`: run a campaign of seeds, or repeat one seed."""

from __future__ import annotations

import argparse
import sys

import msgspec

from tests.simulation.bugs import BUGS
from tests.simulation.campaign import failure, run_campaign, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds, from 0 or --first")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--bug", default="", choices=["", *BUGS], metavar="NAME", help="run with this planted bug")
    parser.add_argument("--bugs", action="store_true", help="list the planted bugs")
    options = parser.parse_args()
    if options.bugs:
        sys.stdout.writelines(f"{bug.name:<40} {bug.what}\n" for bug in BUGS.values())
        return 0
    one = options.seed is not None
    seeds = [options.seed] if one else range(options.first, options.first + options.seeds)
    result = run_campaign(seeds, 1 if one else options.jobs, options.bug, sys.stderr.isatty())
    if options.json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        sys.stdout.write(table(result) + "\n")
    if result.failed is not None:
        sys.stderr.write("\n" + failure(result.failed, options.bug) + "\n")
    return 1 if result.failed is not None else 0


if __name__ == "__main__":
    sys.exit(main())

"""OnceMQ next to other brokers that a Python program can start, each through its own Python client.

Candidates: OnceMQ, PostgreSQL as a queue, Redis Streams and NATS JetStream, over TCP and over Unix sockets where they
have them. Each is configured so that nothing is acknowledged before it is on disk. Redis and JetStream are also
measured as they are by default. All servers run on this machine, in a temporary folder of the current one.

Cases:
{cases}

64 clients are 8 processes with 8 threads, each of which has its own connection. Every round measures all candidates,
once with the server on one CPU and the clients on another one, and once without pinning. Results are medians.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.others import charts, report
from benchmarks.others.candidates import choose
from benchmarks.others.results import PLACEMENTS, Run
from benchmarks.others.run import Plan, measure, usable_placements

_EXAMPLES = """
examples:
  python -m benchmarks.others                                   the tables; about 12 minutes
  python -m benchmarks.others --quick                           one short round; about 2 minutes
  python -m benchmarks.others --only oncemq --only "single put"
  python -m benchmarks.others --json run.json --charts --markdown tables.md
  python -m benchmarks.others --from run.json --charts          draw the charts of an earlier run
"""


def main() -> None:
    options = _parser().parse_args()
    # A stopped benchmark stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = msgspec.json.decode(options.source.read_bytes(), type=Run) if options.source else _measure(options)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")
    if options.markdown:
        options.markdown.write_text(report.as_markdown(run), encoding="utf-8")
    if options.charts:
        for path in charts.write_charts(run, options.charts):
            print(path, file=sys.stderr)
    print(report.as_text(run), end="")


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.others",
        description=__doc__.format(cases=report.legend()),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--seconds", type=float, default=0.8, metavar="N", help="time per measurement; default: 0.8")
    parser.add_argument("--quick", action="store_true", help="one round with 0.2 s per measurement")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="measure only candidates, or cases, whose names contain this; may be repeated",
    )
    parser.add_argument("--placement", choices=list(PLACEMENTS), help="default: both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown to a file")
    parser.add_argument(
        "--charts",
        type=Path,
        nargs="?",
        const=Path("docs/charts"),
        metavar="FOLDER",
        help="write SVG charts to a folder; default: docs/charts",
    )
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="FILE", help="measure nothing: use the figures of --json"
    )
    return parser


def _measure(options: argparse.Namespace) -> Run:
    try:
        candidates, cases = choose(options.only)
    except ValueError as error:
        sys.exit(f"error: {error}")
    rounds, seconds = (1, 0.2) if options.quick else (options.rounds, options.seconds)
    placements = [options.placement] if options.placement else usable_placements()
    plan = Plan(candidates, cases, rounds, seconds, placements)
    with _progress(plan.turns) as advance:
        return measure(plan, Path("."), advance)


@contextmanager
def _progress(turns: int) -> Iterator[Callable[[str], None]]:
    """Show which turn is measured: a bar on a terminal if rich is installed, otherwise a line for each."""
    numbers = count(1)
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda text: print(f"{next(numbers)}/{turns}  {text}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting the servers", total=turns)
        yield lambda text: progress.update(task, description=text, completed=next(numbers) - 1)


if __name__ == "__main__":
    main()

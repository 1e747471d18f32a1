"""All crash campaigns: real processes are killed again and again, then everything is checked.

    python -m tests.acceptance --kills 200
    python -m tests.acceptance --kills 500 --only outbox --seed 7

The seed determines the kills, but the timing of the processes differs: two runs with one seed are not identical.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from tests.acceptance.campaigns import inbox, queue, standby, workers
from tests.acceptance.campaigns.broker import BrokerCampaign
from tests.acceptance.campaigns.copier import CopierCampaign
from tests.acceptance.campaigns.outbox import OutboxCampaign
from tests.acceptance.campaigns.progress import Progress
from tests.acceptance.campaigns.report import CampaignReport

#: Runs a campaign: (folder, kills, seed).
Run = Callable[[Path, int, int], CampaignReport]


def _run_simple(
    make: Callable[[Path, int], BrokerCampaign | CopierCampaign | OutboxCampaign | workers.WorkersCampaign],
    folder: Path,
    kills: int,
    seed: int,
) -> CampaignReport:
    return make(folder, seed).run(kills, Progress(kills))


def _run_on_postgres(folder: Path, kills: int, seed: int) -> CampaignReport:
    with standby.database() as url:
        return standby.PostgresCampaign(folder, seed, url).run(kills, Progress(kills))


def _run_standby(folder: Path, kills: int, seed: int, lease_ms: int = standby.LEASE_MS) -> CampaignReport:
    with standby.database() as url:
        campaign = standby.StandbyCampaign(folder, seed, url, lease_ms)
        report = campaign.run(kills, Progress(kills))
    for how, gap_s in campaign.gaps_s:
        sys.stderr.write(f"{how}: no broker was active for {gap_s:.2f} s\n")
    return report


def _run_inbox(database: inbox.Database, folder: Path, kills: int, seed: int) -> CampaignReport:
    with inbox.open_store(database, folder) as store:
        return inbox.InboxCampaign(store, folder, seed).run(kills, Progress(kills))


CAMPAIGNS: dict[str, Run] = {
    "broker": partial(_run_simple, BrokerCampaign),
    "crash-postgres": _run_on_postgres,
    "standby": _run_standby,
    "outbox": partial(_run_simple, OutboxCampaign),
    "copier": partial(_run_simple, CopierCampaign),
    "copier-outbox": partial(_run_simple, partial(CopierCampaign, has_outbox=True)),
    **{
        variant.name: partial(_run_simple, partial(workers.WorkersCampaign, variant))
        for variant in (workers.WORKERS_VARIANT, workers.KEY_ORDER, workers.POISON)
    },
    "inbox-sqlite": partial(_run_inbox, "sqlite"),
    "inbox-postgres": partial(_run_inbox, "postgres"),
    "queue": queue.run,
}

#: These campaigns wait for a lease after each kill. When all campaigns run, their kills are divided by this.
SLOW = {"crash-postgres": 5, "standby": 20}


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill real processes again and again, and check what they left.")
    parser.add_argument("--kills", type=int, default=200, help="number of kills in each campaign")
    parser.add_argument("--only", choices=list(CAMPAIGNS), help="run one campaign")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--lease-ms", type=int, default=standby.LEASE_MS, help="lease in the campaign `standby`")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folders even if there are no problems")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 2**32
    if "standby" in CAMPAIGNS:
        CAMPAIGNS["standby"] = partial(_run_standby, lease_ms=arguments.lease_ms)
    names = [arguments.only] if arguments.only else list(CAMPAIGNS)
    share = {} if arguments.only else SLOW
    reports = [_run(name, max(2, arguments.kills // share.get(name, 1)), seed, arguments.keep) for name in names]
    if arguments.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(reports), indent=2) + "\n")
    else:
        sys.stdout.write(table(reports))
    for report in reports:
        for problem in report.problems:
            sys.stderr.write(f"{report.campaign}: {problem}\n")
        if report.problems:
            again = f"python -m tests.acceptance --only {report.campaign} --kills {arguments.kills} --seed {seed}"
            sys.stderr.write(f"Repeat it with: {again}\n")
    return 1 if any(report.problems for report in reports) else 0


def _run(name: str, kills: int, seed: int, keep: bool) -> CampaignReport:
    folder = Path(tempfile.mkdtemp(prefix=f"oncemq-{name}-"))
    report = CAMPAIGNS[name](folder, kills, seed)
    if report.problems:
        for log in sorted(folder.glob("*.log")):
            sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}\n")
        sys.stderr.write(f"The evidence is in {folder}.\n")
    elif not keep:
        shutil.rmtree(folder)
    return report


_COLUMNS: dict[str, Callable[[CampaignReport], object]] = {
    "campaign": lambda report: report.campaign,
    "client kills": lambda report: report.kills_count,
    "broker kills": lambda report: report.broker_kills_count,
    "at points": lambda report: report.kills_count - report.kills.get("at any moment", 0),
    "attempted": lambda report: report.attempted,
    "acknowledged": lambda report: report.acknowledged,
    "stored": lambda report: report.stored,
    "lost": lambda report: report.lost,
    "duplicated": lambda report: report.duplicated,
    "out of order": lambda report: report.out_of_order,
    "fenced": lambda report: report.fenced,
    "problems": lambda report: len(report.problems),
    "seconds": lambda report: report.seconds,
    "more": lambda report: ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in report.more.items()),
}


def table(reports: Sequence[CampaignReport]) -> str:
    """Return the reports as a table, with text at the left and numbers at the right."""
    rows = [list(_COLUMNS), *([str(of(report)) for of in _COLUMNS.values()] for report in reports)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index in (0, len(row) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())

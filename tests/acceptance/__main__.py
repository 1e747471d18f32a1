"""All crash campaigns, one after the other: real processes, killed again and again; then what they left is counted.

    python -m tests.acceptance --kills 200
    python -m tests.acceptance --kills 500 --only outbox --seed 7

Kills follow the seed, but processes run as the machine lets them: a seed repeats a plan, not a run.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from tests.acceptance import crash, inbox_crash, queue_crash, standby_crash
from tests.acceptance.account import Account
from tests.acceptance.campaign import Campaign
from tests.acceptance.copier_crash import CopierCampaign, OutboxCopierCampaign
from tests.acceptance.evidence import Verdict
from tests.acceptance.outbox_crash import OutboxCampaign
from tests.acceptance.progress import Progress
from tests.acceptance.workers_crash import KeyOrderCampaign, PoisonCampaign, WorkersCampaign

#: Runs a campaign in a folder, with so many kills and this seed.
Run = Callable[[Path, int, int], Account]


def _run_client(kind: type[Campaign], folder: Path, kills: int, seed: int) -> Account:
    return kind(folder, seed).run(kills, Progress(kills))


def _run_broker(folder: Path, kills: int, seed: int) -> Account:
    return _run_brokers("broker", crash.Campaign(folder, seed), kills)


def _run_on_postgres(folder: Path, kills: int, seed: int) -> Account:
    with standby_crash.database() as url:
        return _run_brokers("crash-postgres", standby_crash.PostgresCampaign(folder, seed, url), kills)


def _run_standby(folder: Path, kills: int, seed: int, lease_ms: int = standby_crash.LEASE_MS) -> Account:
    with standby_crash.database() as url:
        campaign = standby_crash.StandbyCampaign(folder, seed, url, lease_ms)
        account = _run_brokers("standby", campaign, kills)
    for how, gap_s in campaign.gaps_s:
        sys.stderr.write(f"{how}: nobody served for {gap_s:.2f} s\n")
    return account


def _run_brokers(name: str, campaign: crash.Campaign, kills: int) -> Account:
    began_s = time.monotonic()
    try:
        verdict = campaign.run(kills, Progress(kills))
    except crash.CampaignFailed as failure:
        verdict = Verdict([str(failure)], 0, 0, 0, 0, 0)
    broker_kills = dict(sorted(campaign.kills.items()))
    return Account(
        campaign=name,
        problems=verdict.problems,
        kills={"at any moment": broker_kills.pop("worker", 0)},
        broker_kills=broker_kills,
        attempted=verdict.announced,
        promised=verdict.acknowledged,
        stored=verdict.stored,
        lost=verdict.lost,
        doubled=verdict.doubled,
        reordered=verdict.reordered,
        more={"deliveries": verdict.deliveries, "redeliveries": verdict.redeliveries},
        seconds=round(time.monotonic() - began_s, 1),
    )


def _run_inbox(database: inbox_crash.Database, _folder: Path, kills: int, seed: int) -> Account:
    found = inbox_crash.run(kills, database, seed=seed)
    client_kills = dict(found.kills)
    return Account(
        campaign=f"inbox-{database}",
        problems=found.problems,
        broker_kills={"at any moment": client_kills.pop("broker", 0)},
        kills=client_kills,
        attempted=found.published,
        promised=found.published,
        stored=found.effects,
        lost=_counted(found.problems, "missing"),
        doubled=_counted(found.problems, "doubled"),
        seconds=found.seconds,
    )


def _counted(problems: Sequence[str], what: str) -> int:
    return sum(int(count) for count in re.findall(rf"(\d+) effects are {what}", "\n".join(problems)))


CAMPAIGNS: dict[str, Run] = {
    "broker": _run_broker,
    "crash-postgres": _run_on_postgres,
    "standby": _run_standby,
    **{
        kind.name: partial(_run_client, kind)
        for kind in (
            OutboxCampaign,
            CopierCampaign,
            OutboxCopierCampaign,
            WorkersCampaign,
            KeyOrderCampaign,
            PoisonCampaign,
        )
    },
    "inbox-sqlite": partial(_run_inbox, "sqlite"),
    "inbox-postgres": partial(_run_inbox, "postgres"),
    "queue": queue_crash.run,
}

#: After each of these kills a lease is waited for: among all others, they have fewer of them.
SLOW = {"crash-postgres": 5, "standby": 20}


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill real processes again and again, and count what they left.")
    parser.add_argument("--kills", type=int, default=200, help="of each campaign")
    parser.add_argument("--only", choices=list(CAMPAIGNS), help="one campaign")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--lease-ms", type=int, default=standby_crash.LEASE_MS, help="of the campaign `standby`")
    parser.add_argument("--json", action="store_true", help="all that was counted, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folders even if all is well")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 2**32
    if "standby" in CAMPAIGNS:
        CAMPAIGNS["standby"] = partial(_run_standby, lease_ms=arguments.lease_ms)
    names = [arguments.only] if arguments.only else list(CAMPAIGNS)
    share = {} if arguments.only else SLOW
    accounts = [_run(name, max(2, arguments.kills // share.get(name, 1)), seed, arguments.keep) for name in names]
    if arguments.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(accounts), indent=2) + "\n")
    else:
        sys.stdout.write(table(accounts))
    for account in accounts:
        for problem in account.problems:
            sys.stderr.write(f"{account.campaign}: {problem}\n")
        if account.problems:
            again = f"python -m tests.acceptance --only {account.campaign} --kills {arguments.kills} --seed {seed}"
            sys.stderr.write(f"Again: {again}\n")
    return 1 if any(account.problems for account in accounts) else 0


def _run(name: str, kills: int, seed: int, keep: bool) -> Account:
    folder = Path(tempfile.mkdtemp(prefix=f"oncemq-{name}-"))
    account = CAMPAIGNS[name](folder, kills, seed)
    if account.problems:
        for log in sorted(folder.glob("*.log")):
            sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}\n")
        sys.stderr.write(f"Evidence is in {folder}.\n")
    elif not keep:
        shutil.rmtree(folder)
    return account


# The table.

_COLUMNS: dict[str, Callable[[Account], object]] = {
    "campaign": lambda account: account.campaign,
    "client kills": lambda account: account.kills_count,
    "broker kills": lambda account: account.broker_kills_count,
    "at points": lambda account: sum(account.kills.values()) - account.kills.get("at any moment", 0),
    "attempted": lambda account: account.attempted,
    "promised": lambda account: account.promised,
    "stored": lambda account: account.stored,
    "lost": lambda account: account.lost,
    "doubled": lambda account: account.doubled,
    "reordered": lambda account: account.reordered,
    "fenced": lambda account: account.fenced,
    "problems": lambda account: len(account.problems),
    "seconds": lambda account: account.seconds,
    "more": lambda account: ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in account.more.items()),
}


def table(accounts: Sequence[Account]) -> str:
    rows = [list(_COLUMNS), *([str(of(account)) for of in _COLUMNS.values()] for account in accounts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        # Text begins at the left, numbers end at the right.
        cells = [
            cell.ljust(width) if place in (0, len(row) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())

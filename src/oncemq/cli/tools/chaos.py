"""`oncemq chaos`: test the guarantees with real crashes on this machine."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import json_flag
from oncemq.terminal import json_line

if TYPE_CHECKING:
    from oncemq.testing.broker_process import Transport
    from oncemq.tools.chaos.display import Display
    from oncemq.tools.chaos.plan import Plan
    from oncemq.tools.chaos.report import Result
    from oncemq.tools.chaos.sabotage import Sabotage

_SEEDS_MAX = 1_000_000


@click.command(
    cls=Documented,
    exits=(0, 1, 2, 6),
    advice={"BROKER_AWAY": ""},
    examples="""
        oncemq chaos
        oncemq chaos --seed 7 --seconds 60
        oncemq chaos --push
        oncemq chaos --sabotage lose
        oncemq chaos --json | jq .good
        oncemq chaos --record audit-records --seconds 20 && oncemq pipeline audit audit-records
    """,
)
@click.option("--seed", metavar="N", type=click.IntRange(min=0), help="Seed of the schedule. [default: random]")
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(min=1, max=3600),
    default=30.0,
    show_default=True,
    help="Duration of the faults.",
)
@click.option(
    "--sabotage",
    type=click.Choice(["lose", "double", "swap"]),
    help="Violate a guarantee on purpose, in the network: the verdict must be BAD.",
)
@click.option(
    "--transport",
    type=click.Choice(["stream", "zeromq"]),
    default="stream",
    show_default=True,
    help="Transport between the clients and the broker.",
)
@click.option("--push", is_flag=True, help="Also run the push gateway, with a publisher and a subscriber of it.")
@click.option(
    "--record", metavar="DIR", help="Folder in which the clients record what they do, for `oncemq pipeline audit`."
)
@click.option(
    "--keep", metavar="DIR", help="Keep the journal, event logs and process logs in this folder. It is created."
)
@json_flag("Print one JSON object at the end.")
def chaos(
    seed: int | None,
    seconds: float,
    sabotage: Sabotage | None,
    transport: Transport,
    push: bool,
    record: str | None,
    keep: str | None,
    as_json: bool,
) -> None:
    """Test the guarantees with real crashes.

    Starts a broker, three publishers and four subscribers as processes of its own, on random subsets of four topics.
    The broker and the clients are killed with SIGKILL and restarted, subscribers leave and come back, and the network
    between them loses, duplicates and delays packets. At the end a checker compares what was acknowledged with what
    the broker has stored and what every subscriber was given: each acknowledged message must be there exactly once and
    in order. Exit code 1 means that it is not; all files are then kept for inspection, unless it was --sabotage. With
    --push, a publisher and a subscriber of the push gateway take part, and the gateway is killed, too.

    The seed determines the schedule of the faults, but the timing of the processes differs from run to run. Ctrl-C ends
    the faults, and the verdict follows. Everything is cleaned up at the end, and other brokers are not affected.
    """
    from oncemq.testing.broker_process import drop_credentials
    from oncemq.tools.chaos.display import display_for
    from oncemq.tools.chaos.plan import make_plan

    drop_credentials()
    plan = make_plan(random.randrange(_SEEDS_MAX) if seed is None else seed, seconds, push=push)
    display = display_for(as_json)
    result = _run(plan, display, sabotage, transport, _folder_of("--record", record), _folder_of("--keep", keep))
    display.conclude(result)
    if as_json:
        click.echo(json_line(result.as_object()))
    if not result.is_good:
        sys.exit(1)


def _run(
    plan: Plan,
    display: Display,
    sabotage: Sabotage | None,
    transport: Transport,
    record: Path | None,
    keep: Path | None,
) -> Result:
    import msgspec

    from oncemq.tools.chaos.plan import BROKER
    from oncemq.tools.chaos.run import Run
    from oncemq.tools.faults.processes import Guardian

    folder = keep or Path(tempfile.mkdtemp(prefix="oncemq-chaos-"))
    guardian = Guardian(folder / BROKER, folder if keep is None else None)
    is_kept = keep is not None
    try:
        recorded = "" if record is None else str(record)
        result = Run(plan, folder, display, sabotage=sabotage, record=recorded, transport=transport).run()
        # The files of an unexpected bad verdict are evidence.
        is_kept = is_kept or not (result.is_good or sabotage)
        return msgspec.structs.replace(result, folder=str(folder)) if is_kept else result
    finally:
        guardian.dismiss()
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _folder_of(option: str, given: str | None) -> Path | None:
    """Return an empty folder, which is created if necessary. Raises SettingInvalid if that is not possible."""
    if given is None:
        return None
    from oncemq.protocol.errors import SettingInvalid

    folder = Path(given).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SettingInvalid(f"{option}: '{given}' is not empty")
    except OSError as error:
        raise SettingInvalid(f"{option}: '{given}' can't be used: {error.strerror}") from None
    return folder

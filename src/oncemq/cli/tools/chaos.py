"""`oncemq chaos`: what is promised, shown under real crashes, on this machine."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import remember_json
from oncemq.cli.support.output import json_line

if TYPE_CHECKING:
    from oncemq.tools.chaos.plan import Plan
    from oncemq.tools.chaos.report import Result
    from oncemq.tools.chaos.sabotage import Sabotage
    from oncemq.tools.chaos.screen import Silent

_SEEDS = 1_000_000


@click.command(
    cls=Documented,
    exits=(0, 1, 2, 6),
    advice={"BROKER_AWAY": ""},
    examples="""
        oncemq chaos
        oncemq chaos --seed 7 --seconds 60
        oncemq chaos --sabotage lose
        oncemq chaos --json | jq .good
        oncemq chaos --record story --seconds 20 && oncemq pipeline audit story
    """,
)
@click.option("--seed", metavar="N", type=click.IntRange(min=0), help="Draw the schedule from this. [default: any]")
@click.option(
    "--seconds",
    metavar="N",
    type=click.FloatRange(min=1, max=3600),
    default=30.0,
    show_default=True,
    help="How long the faults last.",
)
@click.option(
    "--sabotage",
    type=click.Choice(["lose", "double", "swap"]),
    help="Break a promise on purpose, in the network: the verdict must be bad.",
)
@click.option("--record", metavar="DIR", help="Clients write down what they do, for `oncemq pipeline audit`.")
@click.option("--keep", metavar="DIR", help="Leave journal, diaries and logs in this folder. It is made.")
@click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=remember_json, help="One JSON object at the end."
)
def chaos(
    seed: int | None, seconds: float, sabotage: Sabotage | None, record: str | None, keep: str | None, as_json: bool
) -> None:
    """Show that nothing is lost, with real crashes.

    Starts a broker, three publishers and four subscribers of its own, each a process, on random parts of four
    topics. The broker and the clients are killed with SIGKILL and start again, subscribers come and go, and the
    network between them loses, doubles and delays packets. In the end a checker compares what everybody was told
    with what the broker has stored and what every subscriber was given: each acknowledged message must be there
    exactly once and in order. Exit code 1: it is not; then everything is kept for you to look at, unless it was
    --sabotage.

    The seed decides what happens when; what that hits at the moment, the machine decides. Ctrl-C ends the faults,
    and the verdict follows. Nothing is left behind, and no other broker is touched.
    """
    from oncemq.tools.chaos.plan import draw
    from oncemq.tools.chaos.screen import screen_for

    plan = draw(random.randrange(_SEEDS) if seed is None else seed, seconds)
    screen = screen_for(as_json)
    result = _run(plan, screen, sabotage, _folder_of("--record", record), _folder_of("--keep", keep))
    screen.conclude(result)
    if as_json:
        click.echo(json_line(result.as_object()))
    if not result.is_good:
        sys.exit(1)


def _run(plan: Plan, screen: Silent, sabotage: Sabotage | None, record: Path | None, keep: Path | None) -> Result:
    import msgspec

    from oncemq.tools.chaos.processes import Guardian
    from oncemq.tools.chaos.run import Run

    folder = keep or Path(tempfile.mkdtemp(prefix="oncemq-chaos-"))
    guardian = Guardian(folder, removes_folder=keep is None)
    is_kept = keep is not None
    try:
        run = Run(plan, folder, screen, sabotage=sabotage, record="" if record is None else str(record))
        result = run.run()
        # A bad verdict that nobody asked for is evidence.
        is_kept = is_kept or not (result.is_good or sabotage)
        return msgspec.structs.replace(result, folder=str(folder)) if is_kept else result
    finally:
        guardian.dismiss()
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _folder_of(option: str, given: str | None) -> Path | None:
    """A folder that is empty, or made now."""
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

"""`oncemq work`: a command for each message of a shared subscription."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.messages.sharing_options import Policy, shares
from oncemq.cli.messages.sub import offset_of
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import (
    DURATION,
    SUBSCRIBER,
    TOPIC,
    Reach,
    Start,
    connected,
    is_pattern,
    reaches_broker,
    remember_json,
)
from oncemq.cli.support.output import is_terminal, json_line, note

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.cli.messages.worker_pool import Crew
    from oncemq.client.worker.sync import SharedSubscription

#: Leases are extended for as long as a command may run.
_EXTEND_MAX_S = 10 * 365 * 86_400.0


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 3, 5, 9, 143),
    advice={
        "KIND_MISMATCH": "Use `oncemq listen`, or give the workers a subscriber of their own.",
        "BROKER_AWAY": "Start it (`oncemq serve`), or check the address (`--url`). What was not acked comes again.",
    },
    examples="""
        oncemq work orders packers -- ./pack.sh
        oncemq work orders packers --jobs 4 --tries-max 5 -- python pack.py
        oncemq work mails smtp --timeout-per-message 30s -- sh -c 'sendmail "$ONCEMQ_HEADER_TO"'
        oncemq work orders packers --wait 10 -- ./pack.sh
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("subscriber", type=SUBSCRIBER)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), default=1, help="So many at a time. [default: 1]")
@click.option(
    "--timeout-per-message", "timeout_s", metavar="TIME", type=DURATION, help="Kill a command that takes longer."
)
@click.option(
    "--retry-delay",
    "retry_s",
    metavar="TIME",
    type=DURATION,
    default=1.0,
    help="Deliver a message again so long after its first failure; twice as long after each other one, up to 5 "
    "minutes. [default: 1s]",
)
@click.option(
    "--grace",
    "grace_s",
    metavar="TIME",
    type=DURATION,
    help="At the end, let running commands run on for so long, then kill them. [default: as long as they take]",
)
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="End after so many commands.")
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="End when there was nothing to do for so long. [default: never]",
)
@click.option("--from", "start", type=Start(), help="Where a subscription begins that is made by this. [default: new]")
@shares
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,
    callback=remember_json,
    help="The summary as a JSON object, on standard error.",
)
@reaches_broker
def work(
    topic: str,
    subscriber: str,
    command: tuple[str, ...],
    jobs: int,
    timeout_s: float | None,
    retry_s: float,
    grace_s: float | None,
    count: int | None,
    wait_s: float | None,
    start: str | int | datetime | None,
    policy: Policy,
    as_json: bool,
    reach: Reach,
) -> None:
    """Run a command for each message, and ack it on success.

    Any number of workers share a subscription: each message goes to one of them. It is acked when the command ends
    with exit code 0; otherwise it is delivered again, to whichever worker is free. A command may take as long as it
    likes; if its worker dies, another one gets the message after the lease. So a message may be worked on more than
    once, and ONCEMQ_IDEMPOTENCY_KEY is the same each time.

    The command gets the value on standard input, and in its environment ONCEMQ_TOPIC, ONCEMQ_OFFSET, ONCEMQ_KEY,
    ONCEMQ_TIME, ONCEMQ_TRY (1 for the first delivery), ONCEMQ_IDEMPOTENCY_KEY, and ONCEMQ_HEADER_NAME for each header.
    Its output is passed on; with several --jobs, each line after its message's offset.

    Subscribes, where that was not done before; --lease, --tries-max, --dead and --key-order are for that. With
    --tries-max, a message that failed so often goes to a dead-letter topic (`oncemq dead`).

    At Ctrl-C or SIGTERM, running commands end first, and the rest is given back; at the second one they are killed.
    Exit code 1: some messages were not done.
    """
    from oncemq.cli.messages.worker_pool import Crew, Terms

    _check(topic, command, policy, reach)
    terms = Terms(command, jobs, timeout_s, retry_s, grace_s)
    with connected(reach) as client, _joined(client, topic, subscriber, start, policy, jobs) as shared:
        crew = Crew(shared, terms)
        try:
            crew.work(count, wait_s)
        finally:
            note(json_line(crew.tally.entry()) if as_json else crew.tally.text())
    _end(crew, topic, subscriber)


def _check(topic: str, command: tuple[str, ...], policy: Policy, reach: Reach) -> None:
    policy.check(reach)
    if is_pattern(topic):
        raise click.UsageError("A subscription by pattern can't be shared: workers need a topic.")
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"There is no command {command[0]!r}.")


def _joined(
    client: Client, topic: str, subscriber: str, start: str | int | datetime | None, policy: Policy, jobs: int
) -> SharedSubscription:
    """The subscription as it is, or one that is made."""
    from oncemq.protocol.errors import KindMismatch, NotSubscribed, TopicUnknown

    # Nothing is taken that no command is there for.
    hands: dict[str, Any] = {"prefetch": 0, "unsettled_max": jobs + 1, "extend_max_s": _EXTEND_MAX_S}
    try:
        shared = client.shared_subscription(topic, subscriber, **hands)
    except (NotSubscribed, TopicUnknown):
        offset = offset_of(client, topic, "new" if start is None else start)
        shared = client.subscribe_shared(topic, subscriber, offset, **policy.given(), **hands)
        if is_terminal():
            note(f"Subscribed {subscriber} to {topic}.")
        return shared
    except KindMismatch:
        raise KindMismatch(f"{subscriber} on {topic} is not shared: one consumer gets all its messages") from None
    _refuse_other(shared, policy)
    if start is not None:
        note(f"{subscriber} was subscribed to {topic} before, and goes on where it was. `oncemq seek` moves it.")
    return shared


def _refuse_other(shared: SharedSubscription, policy: Policy) -> None:
    """What was given must be so; changing it under the hands of other workers is not what this is for."""
    from oncemq.protocol.errors import SubscriptionExists

    sharing = shared.sharing
    known = {
        "lease_s": sharing.lease_ms / 1000,
        "tries_max": sharing.tries_max,
        "dead_topic": sharing.dead_topic,
        "key_order": sharing.key_order,
    }
    if any(known[name] != value for name, value in policy.given().items()):
        way = f"--lease {known['lease_s']:g}s"
        way += f" --tries-max {sharing.tries_max} --dead {sharing.dead_topic}" if sharing.tries_max else ""
        way += " --key-order" if sharing.key_order else ""
        raise SubscriptionExists(f"{shared.subscriber} on {shared.topic} is shared in another way: {way}")


def _end(crew: Crew, topic: str, subscriber: str) -> None:
    from oncemq.protocol.errors import NothingNew

    if crew.signal is not None:
        sys.exit(128 + crew.signal)
    if not crew.tally.runs:
        raise NothingNew(f"There was nothing to do in {topic} for {subscriber}.")
    if crew.tally.undone:
        sys.exit(1)

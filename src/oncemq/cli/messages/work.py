"""`oncemq work`: run a command for each message of a shared subscription."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.messages.listen import note_existing_position
from oncemq.cli.messages.shared_options import SharedOptions, shared_options
from oncemq.cli.messages.sub import offset_of
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import (
    DURATION,
    SUBSCRIBER,
    TOPIC,
    Reach,
    StartPosition,
    connected,
    idle_option,
    json_flag,
    reaches_broker,
)
from oncemq.protocol.patterns import is_pattern
from oncemq.terminal import is_terminal, json_line, note

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.cli.messages.worker_pool import WorkerPool
    from oncemq.client.worker.sync import SharedSubscription

#: Leases are renewed for as long as a command may run.
_EXTEND_MAX_S = 10 * 365 * 86_400.0


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 3, 5, 9, 143),
    advice={
        "KIND_MISMATCH": "Use `oncemq listen`, or give the workers a subscriber of their own.",
        "BROKER_AWAY": "Start the broker (`oncemq serve`), or check the address (`--url`). Messages that were not "
        "acked are delivered again.",
    },
    examples="""
        oncemq work orders packers -- ./pack.sh
        oncemq work orders packers --jobs 4 --tries-max 5 -- python pack.py
        oncemq work mails smtp --timeout-per-message 30s -- sh -c 'sendmail -i -- "$ONCEMQ_HEADER_TO"'
        oncemq work orders packers --wait 10s -- ./pack.sh
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("subscriber", type=SUBSCRIBER)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), default=1, help="Number of concurrent commands. [default: 1]"
)
@click.option(
    "--timeout-per-message",
    "timeout_s",
    metavar="TIME",
    type=DURATION,
    help="Kill a command that runs longer. [default: no limit]",
)
@click.option(
    "--retry-delay",
    "retry_s",
    metavar="TIME",
    type=DURATION,
    default=1.0,
    help="Delay before a message is redelivered after its first failure. It doubles with each further failure, up to 5 "
    "minutes. [default: 1s]",
)
@click.option(
    "--grace",
    "grace_s",
    metavar="TIME",
    type=DURATION,
    help="At the end, kill commands that are still running after this time. [default: no limit]",
)
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="Exit after N commands.")
@idle_option
@click.option(
    "--from", "start", type=StartPosition(), help="Where the subscription starts if it is new. [default: new]"
)
@shared_options
@json_flag("Print the summary as a JSON object, on standard error.")
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
    shared_options: SharedOptions,
    as_json: bool,
    reach: Reach,
) -> None:
    """Run a command for each message, and ack it on success.

    Any number of workers share a subscription: each message goes to one of them. It is acked when the command ends with
    exit code 0; otherwise it is redelivered, to any worker that is free. A command may take any time. If its worker
    dies, another worker gets the message after the lease. So a message may be processed more than once;
    ONCEMQ_IDEMPOTENCY_KEY is the same each time.

    The command gets the value on standard input, and in its environment ONCEMQ_TOPIC, ONCEMQ_OFFSET, ONCEMQ_KEY,
    ONCEMQ_TIME, ONCEMQ_TRY (1 for the first delivery), ONCEMQ_IDEMPOTENCY_KEY, and ONCEMQ_HEADER_NAME for each header.
    Keys and headers come from producers. In a shell, put them in quotes, and after `--`: otherwise a value that starts
    with a hyphen is taken for an option. The output of the command is passed through; with several --jobs, each line is
    prefixed with the offset of its message.

    Creates the subscription if it does not exist; --lease, --tries-max, --dead and --key-order are its settings. With
    --tries-max, a message that has failed that many times goes to a dead-letter topic (`oncemq dead`).

    At Ctrl-C or SIGTERM, running commands may finish, and other messages are returned; a second signal kills the
    commands. Exit code 1 means that some messages failed.
    """
    from oncemq.cli.messages.worker_pool import JobOptions, WorkerPool

    _check(topic, command, shared_options, reach)
    options = JobOptions(command, jobs, timeout_s, retry_s, grace_s)
    with connected(reach) as client, _join(client, topic, subscriber, start, shared_options, jobs) as shared:
        pool = WorkerPool(shared, options)
        try:
            pool.work(count, wait_s)
        finally:
            note(json_line(pool.summary.entry()) if as_json else pool.summary.text())
    _exit(pool, topic, subscriber)


def _check(topic: str, command: tuple[str, ...], options: SharedOptions, reach: Reach) -> None:
    options.check(reach)
    if is_pattern(topic):
        raise click.UsageError("A subscription by pattern can't be shared: workers need a topic.")
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"There is no command {command[0]!r}.")


def _join(
    client: Client, topic: str, subscriber: str, start: str | int | datetime | None, options: SharedOptions, jobs: int
) -> SharedSubscription:
    """Open the shared subscription, or create it."""
    from oncemq.protocol.errors import KindMismatch, NotSubscribed, TopicUnknown

    # No message is taken before a command can be run for it.
    limits: dict[str, Any] = {"prefetch": 0, "unsettled_max": jobs + 1, "extend_max_s": _EXTEND_MAX_S}
    try:
        shared = client.shared_subscription(topic, subscriber, **limits)
    except (NotSubscribed, TopicUnknown):
        offset = offset_of(client, topic, "new" if start is None else start)
        shared = client.subscribe_shared(topic, subscriber, offset, **options.given(), **limits)
        if is_terminal():
            note(f"Subscribed {subscriber} to {topic}.")
        return shared
    except KindMismatch:
        raise KindMismatch(f"{subscriber} on {topic} is not shared: one consumer gets all its messages") from None
    _check_settings(shared, options)
    if start is not None:
        note_existing_position(topic, subscriber)
    return shared


def _check_settings(shared: SharedSubscription, options: SharedOptions) -> None:
    """Raise SubscriptionExists if the subscription has other settings: other workers may depend on them."""
    from oncemq.protocol.errors import SubscriptionExists

    sharing = shared.sharing
    actual = {
        "lease_s": sharing.lease_ms / 1000,
        "tries_max": sharing.tries_max,
        "dead_topic": sharing.dead_topic,
        "key_order": sharing.key_order,
    }
    if any(actual[name] != value for name, value in options.given().items()):
        text = f"--lease {actual['lease_s']:g}s"
        text += f" --tries-max {sharing.tries_max} --dead {sharing.dead_topic}" if sharing.tries_max else ""
        text += " --key-order" if sharing.key_order else ""
        raise SubscriptionExists(f"{shared.subscriber} on {shared.topic} exists with other settings: {text}")


def _exit(pool: WorkerPool, topic: str, subscriber: str) -> None:
    from oncemq.protocol.errors import NothingNew

    if pool.signal is not None:
        sys.exit(128 + pool.signal)
    if not pool.summary.runs:
        raise NothingNew(f"There were no messages in {topic} for {subscriber}.")
    if pool.summary.undone:
        sys.exit(1)

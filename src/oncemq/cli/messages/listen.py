"""`oncemq listen`: a subscriber's messages as they come, acked as they are printed.

It owns its subscription while it runs, so that nothing stands between a message and its being printed; whoever
opens the subscription after it, takes it over.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from oncemq.cli.messages.formats import Render
from oncemq.cli.messages.get import CONSUMING_ADVICE, told_of_sharing
from oncemq.cli.messages.printer import Printer, Wanted, prints_messages
from oncemq.cli.messages.sub import make_subscription
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import SUBSCRIBER, TOPIC_OR_PATTERN, Reach, Start, connected, is_pattern, reaches_broker
from oncemq.cli.support.output import is_terminal, note
from oncemq.cli.support.signals import orderly

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.client.consumer.sync import PatternSubscription, Subscription


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 3, 5, 7, 9, 141, 143),
    advice={
        **CONSUMING_ADVICE,
        **dict.fromkeys(
            ("FENCED", "SUBSCRIPTION_FENCED"),
            "A get or another listen of this subscriber has it now. Give each a subscriber of its own.",
        ),
    },
    examples="""
        oncemq listen orders kitchen
        oncemq listen orders kitchen --from earliest --json | jq .value
        oncemq listen "orders.*" audit --format "{time} {topic} {value}" >> audit.log
        oncemq listen orders eu --header region=eu
        oncemq listen orders kitchen --count 10 --wait 60
    """,
)
@click.argument("topic", type=TOPIC_OR_PATTERN)
@click.argument("subscriber", type=SUBSCRIBER)
@click.option("--from", "start", type=Start(), help="Where a subscription begins that is made by this. [default: new]")
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="End after so many messages.")
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="End when nothing came for so long. [default: never]",
)
@prints_messages
@reaches_broker
def listen(
    topic: str,
    subscriber: str,
    start: str | int | datetime | None,
    count: int | None,
    wait_s: float | None,
    wanted: Wanted,
    render: Render,
    reach: Reach,
) -> None:
    """Print a subscriber's messages as they come, and ack them.

    Subscribes, where that was not done before. A message is acked after it was printed; what was not, comes the next
    time. Ends with Ctrl-C or SIGTERM, after the acks. With --header, messages that don't have it are left out,
    and acked with the others.

    A subscriber has one listener. Another one, or a `get`, takes the subscription over, and this one ends with exit
    code 7. For any number of consumers that share the messages: `oncemq work`.
    """
    from oncemq.protocol.errors import NothingNew

    with orderly(), connected(reach) as client, told_of_sharing(topic, subscriber):
        _subscribe(client, topic, subscriber, start)
        with _opened(client, topic, subscriber) as subscription:
            printed = _print_all(subscription, Printer(client, render, wanted), count, wait_s)
    if not printed:
        raise NothingNew(f"Nothing came in {topic} for {subscriber}.")


def _subscribe(client: Client, topic: str, subscriber: str, start: str | int | datetime | None) -> None:
    created = make_subscription(client, topic, subscriber, "new" if start is None else start)
    if created and is_terminal():
        note(f"Subscribed {subscriber} to {topic}.")
    elif not created and start is not None:
        note(f"{subscriber} was subscribed to {topic} before, and goes on where it was. `oncemq seek` moves it.")


def _opened(client: Client, topic: str, subscriber: str) -> Subscription | PatternSubscription:
    if is_pattern(topic):
        return client.pattern_subscription(topic, subscriber, auto_ack=False)
    return client.subscription(topic, subscriber, auto_ack=False)


def _print_all(
    subscription: Subscription | PatternSubscription, printer: Printer, count: int | None, wait_s: float | None
) -> int:
    printed, since_s = 0, time.monotonic()
    while count is None or printed < count:
        left_s = None if wait_s is None else since_s + wait_s - time.monotonic()
        messages = subscription.get_many(printer.chunk_messages, timeout_s=None if left_s is None else max(0.0, left_s))
        if not messages:
            break
        found = printer.print(subscription, messages, len(messages) if count is None else count - printed)
        if found:
            printed, since_s = printed + found, time.monotonic()
        elif left_s is not None and left_s <= 0:
            # Others come, but none that is wanted.
            break
    return printed

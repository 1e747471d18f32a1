"""`oncemq listen`: print a subscriber's messages as they arrive, and ack them.

It owns its subscription while it runs, so that messages are printed without delay. A consumer that opens the
subscription later takes it over.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from oncemq.cli.messages.formats import Render
from oncemq.cli.messages.get import CONSUMER_ADVICE, shared_subscriptions_explained
from oncemq.cli.messages.printer import Printer, Selector, prints_messages
from oncemq.cli.messages.sub import make_subscription
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import (
    SUBSCRIBER,
    TOPIC_OR_PATTERN,
    Reach,
    StartPosition,
    connected,
    idle_option,
    reaches_broker,
)
from oncemq.cli.support.signals import orderly_exit
from oncemq.protocol.patterns import is_pattern
from oncemq.terminal import is_terminal, note

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.client.consumer.sync import PatternSubscription, Subscription


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 3, 5, 7, 9, 141, 143),
    advice={
        **CONSUMER_ADVICE,
        **dict.fromkeys(
            ("FENCED", "SUBSCRIPTION_FENCED"),
            "A get or another listen of this subscriber has taken it over. Use a different subscriber for each.",
        ),
    },
    examples="""
        oncemq listen orders kitchen
        oncemq listen orders kitchen --from earliest --json | jq .value
        oncemq listen "orders.*" audit --format "{time} {topic} {value}" >> audit.log
        oncemq listen orders eu --header region=eu
        oncemq listen orders kitchen --count 10 --wait 1m
    """,
)
@click.argument("topic", type=TOPIC_OR_PATTERN)
@click.argument("subscriber", type=SUBSCRIBER)
@click.option(
    "--from", "start", type=StartPosition(), help="Where the subscription starts if it is new. [default: new]"
)
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="Exit after N messages.")
@idle_option
@prints_messages
@reaches_broker
def listen(
    topic: str,
    subscriber: str,
    start: str | int | datetime | None,
    count: int | None,
    wait_s: float | None,
    selector: Selector,
    render: Render,
    reach: Reach,
) -> None:
    """Print a subscriber's messages as they arrive, and ack them.

    Creates the subscription if it does not exist. A message is acked after it was printed; the next run prints those
    that were not. Ctrl-C or SIGTERM ends the command after the acks. With --header, messages without the header are
    skipped, and acked with the others.

    A subscriber has one listener. Another one, or a `get`, takes the subscription over, and this command ends with exit
    code 7. To share the messages among several consumers, use `oncemq work`.
    """
    from oncemq.protocol.errors import NothingNew

    with orderly_exit(), connected(reach) as client, shared_subscriptions_explained(topic, subscriber):
        _subscribe(client, topic, subscriber, start)
        with _open(client, topic, subscriber) as subscription:
            printed = _print_all(subscription, Printer(client, render, selector), count, wait_s)
    if not printed:
        raise NothingNew(f"No messages arrived in {topic} for {subscriber}.")


def _subscribe(client: Client, topic: str, subscriber: str, start: str | int | datetime | None) -> None:
    created = make_subscription(client, topic, subscriber, "new" if start is None else start)
    if created and is_terminal():
        note(f"Subscribed {subscriber} to {topic}.")
    elif not created and start is not None:
        note_existing_position(topic, subscriber)


def note_existing_position(topic: str, subscriber: str) -> None:
    """Explain why --from has no effect."""
    note(f"{subscriber} is already subscribed to {topic}, and continues at its position. `oncemq seek` moves it.")


def _open(client: Client, topic: str, subscriber: str) -> Subscription | PatternSubscription:
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
            # Messages arrive, but none that is selected.
            break
    return printed

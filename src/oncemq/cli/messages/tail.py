"""`oncemq tail`: print what is put into a topic. It has no subscription, and acks nothing."""

from __future__ import annotations

import sys
from datetime import datetime
from itertools import islice

import click

from oncemq.cli.messages.formats import Render
from oncemq.cli.messages.printer import Selector, prints_messages
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import TOPIC, Reach, StartPosition, connected, reaches_broker


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5, 9, 141),
    advice={**READ_ONLY_ADVICE, "TOPIC_UNKNOWN": "`oncemq topics` lists the topics."},
    examples="""
        oncemq tail orders
        oncemq tail orders --from earliest --count 10
        oncemq tail orders --from -2h --header source=web
        oncemq tail orders --no-follow --json | jq -r .value
    """,
)
@click.argument("topic", type=TOPIC)
@click.option(
    "--from", "start", type=StartPosition(), help="Where to start. [default: new; with --no-follow: earliest]"
)
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="Exit after N messages.")
@click.option("--no-follow", is_flag=True, help="Exit at the end of the topic instead of waiting for more messages.")
@prints_messages
@reaches_broker
def tail(
    topic: str,
    start: str | int | datetime | None,
    count: int | None,
    no_follow: bool,
    selector: Selector,
    render: Render,
    reach: Reach,
) -> None:
    """Print a topic's messages as they arrive, without acking.

    Shows stored messages and new ones. Subscriptions are not affected. Ctrl-C ends it.
    """
    if start is None:
        start = "earliest" if no_follow else "new"
    stdout = sys.stdout.buffer
    with connected(reach) as client:
        messages = client.read(topic, start=start, follow=not no_follow)
        for message in islice(filter(selector, messages), count):
            stdout.write(render(message))
            stdout.flush()

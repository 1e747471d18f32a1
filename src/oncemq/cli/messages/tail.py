"""`oncemq tail`: what happens in a topic, for eyes; it belongs to nobody and acks nothing."""

from __future__ import annotations

import sys
from datetime import datetime
from itertools import islice

import click

from oncemq.cli.messages.formats import Render
from oncemq.cli.messages.printer import Wanted, prints_messages
from oncemq.cli.support.command import BROKER_EXITS, LOOKING_ADVICE, Documented
from oncemq.cli.support.options import TOPIC, Reach, Start, connected, reaches_broker


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5, 9, 141),
    advice={**LOOKING_ADVICE, "TOPIC_UNKNOWN": "`oncemq topics` lists the topics."},
    examples="""
        oncemq tail orders
        oncemq tail orders --from earliest --count 10
        oncemq tail orders --from -2h --header source=web
        oncemq tail orders --no-follow --json | jq -r .value
    """,
)
@click.argument("topic", type=TOPIC)
@click.option("--from", "start", type=Start(), help="Where to begin. [default: new; with --no-follow: earliest]")
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--no-follow", is_flag=True, help="End at the topic's end instead of waiting for more.")
@prints_messages
@reaches_broker
def tail(
    topic: str,
    start: str | int | datetime | None,
    count: int | None,
    no_follow: bool,
    wanted: Wanted,
    render: Render,
    reach: Reach,
) -> None:
    """Print a topic's messages as they come, without acking.

    Shows what is still stored and what arrives; takes nothing away from any subscriber. Ends with Ctrl-C.
    """
    if start is None:
        start = "earliest" if no_follow else "new"
    stdout = sys.stdout.buffer
    with connected(reach) as client:
        messages = client.read(topic, start=start, follow=not no_follow)
        for message in islice(filter(wanted, messages), count):
            stdout.write(render(message))
            stdout.flush()

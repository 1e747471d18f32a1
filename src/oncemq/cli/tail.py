"""`oncemq tail`: what happens in a topic, for eyes; it belongs to nobody and acks nothing."""

from __future__ import annotations

import sys
from itertools import islice

import click

from oncemq.cli.command import BROKER_EXITS, LOOKING_ADVICE, Documented
from oncemq.cli.formats import FORMAT_HELP, renderer
from oncemq.cli.options import TOPIC, Reach, Start, connected, json_option, reaches_broker


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5, 9, 141),
    advice={**LOOKING_ADVICE, "TOPIC_UNKNOWN": "`oncemq topics` lists the topics."},
    examples="""
        oncemq tail orders
        oncemq tail orders --from earliest --count 10
        oncemq tail orders --no-follow --json | jq -r .value
    """,
)
@click.argument("topic", type=TOPIC)
@click.option("--from", "start", type=Start(), help="Where to begin. [default: new; with --no-follow: earliest]")
@click.option("--count", metavar="N", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--no-follow", is_flag=True, help="End at the topic's end instead of waiting for more.")
@click.option("--format", "template", metavar="TEXT", help=FORMAT_HELP)
@click.option("--null", is_flag=True, help="End each message with NUL instead of a line's end.")
@json_option
@reaches_broker
def tail(
    topic: str,
    start: str | int | None,
    count: int | None,
    no_follow: bool,
    template: str | None,
    null: bool,
    as_json: bool,
    reach: Reach,
) -> None:
    """Print a topic's messages as they come, without acking.

    Shows what is still stored and what arrives; takes nothing away from any subscriber. Ends with Ctrl-C.
    """
    render = renderer(as_json, template, null)
    if start is None:
        start = "earliest" if no_follow else "new"
    stdout = sys.stdout.buffer
    with connected(reach) as client:
        for message in islice(client.read(topic, start=start, follow=not no_follow), count):
            stdout.write(render(message))
            stdout.flush()

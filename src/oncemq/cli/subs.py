"""`oncemq subs`: who is subscribed to what, and how far behind."""

from __future__ import annotations

import click

from oncemq.cli.command import BROKER_EXITS, LOOKING_ADVICE, Documented
from oncemq.cli.options import TOPIC, Reach, connected, json_option, reaches_broker
from oncemq.cli.output import json_line, note, table


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    advice={**LOOKING_ADVICE, "TOPIC_UNKNOWN": "`oncemq topics` lists the topics."},
    examples="""
        oncemq subs
        oncemq subs orders
        oncemq subs --json | jq 'select(.lag > 1000)'
    """,
)
@click.argument("topic", type=TOPIC, required=False)
@json_option
@reaches_broker
def subs(topic: str | None, as_json: bool, reach: Reach) -> None:
    """List subscriptions and how far behind they are.

    The lag is the number of messages that the subscriber has not acked yet.
    """
    import msgspec

    with connected(reach) as client:
        found = client.subscriptions(topic)
    if as_json:
        for entry in found:
            click.echo(json_line({**msgspec.structs.asdict(entry), "lag": entry.lag}))
        return
    if not found:
        note("There are no subscriptions.")
        return
    rows = [(entry.topic, entry.subscriber, entry.acked, entry.end_offset, entry.lag) for entry in found]
    for line in table(["TOPIC", "SUBSCRIBER", "ACKED", "END", "LAG"], rows):
        click.echo(line)

"""`oncemq sub` and `unsub`: subscriptions begin and end."""

from __future__ import annotations

import click

from oncemq.cli.command import BROKER_EXITS, Documented
from oncemq.cli.options import TOPIC, Reach, Start, connected, json_option, reaches_broker
from oncemq.cli.output import json_line


@click.command(
    cls=Documented,
    exits=BROKER_EXITS,
    examples="""
        oncemq sub orders kitchen
        oncemq sub orders accounting --from earliest
        oncemq sub "Cooking Recipes" alice
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("subscriber")
@click.option("--from", "start", type=Start(), default="new", show_default=True, help="Where to begin.")
@json_option
@reaches_broker
def sub(topic: str, subscriber: str, start: str | int, as_json: bool, reach: Reach) -> None:
    """Subscribe to a topic.

    From now on the broker keeps the topic's messages until this subscriber has acked them. A topic that does not
    exist is made; unless `put --create` or `topics create` asked for it, it goes with its last subscriber.
    Subscribing again changes nothing.
    """
    with connected(reach) as client:
        created = client.subscribe(topic, subscriber, start=start).created
    if as_json:
        click.echo(json_line({"topic": topic, "subscriber": subscriber, "created": created}))
    elif created:
        click.echo(f"Subscribed {subscriber} to {topic}.")
    else:
        click.echo(f"{subscriber} was subscribed to {topic} before; nothing has changed.")


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    examples="""
        oncemq unsub orders kitchen
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("subscriber")
@json_option
@reaches_broker
def unsub(topic: str, subscriber: str, as_json: bool, reach: Reach) -> None:
    """End a subscription.

    What the subscriber had not yet acked is no longer kept for it. A topic that only subscribers had made goes
    with the last of them.
    """
    with connected(reach) as client:
        client.unsubscribe(topic, subscriber)
    if as_json:
        click.echo(json_line({"topic": topic, "subscriber": subscriber}))
    else:
        click.echo(f"Unsubscribed {subscriber} from {topic}.")

"""`oncemq sub` and `unsub`: subscriptions begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oncemq.cli.command import BROKER_EXITS, Documented
from oncemq.cli.options import SUBSCRIBER, TOPIC, Reach, Start, connected, json_option, reaches_broker
from oncemq.cli.output import count_of, json_line

if TYPE_CHECKING:
    from oncemq.client import Client


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
@click.argument("subscriber", type=SUBSCRIBER)
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
    advice=dict.fromkeys(("TOPIC_UNKNOWN", "NOT_SUBSCRIBED"), "`oncemq subs` lists the subscriptions."),
    examples="""
        oncemq unsub orders kitchen
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("subscriber", type=SUBSCRIBER)
@json_option
@reaches_broker
def unsub(topic: str, subscriber: str, as_json: bool, reach: Reach) -> None:
    """End a subscription.

    What the subscriber had not yet acked is no longer kept for it. A topic that only subscribers had made goes
    with the last of them.
    """
    with connected(reach) as client:
        messages = _messages_that_go(client, topic)
        client.unsubscribe(topic, subscriber)
    if as_json:
        gone = {"topic_removed": messages is not None, "messages_removed": messages or 0}
        click.echo(json_line({"topic": topic, "subscriber": subscriber, **gone}))
        return
    click.echo(f"Unsubscribed {subscriber} from {topic}.")
    if messages is not None:
        click.echo(f"It was the last subscriber: {topic} is gone, with {count_of(messages, 'message')}.")


def _messages_that_go(client: Client, topic: str) -> int | None:
    """With the topic, if it goes with its only subscriber; None: it stays."""
    for info in client.topics():
        if info.name == topic and not info.stays and info.subscriptions == 1:
            return info.end_offset - info.first_offset
    return None

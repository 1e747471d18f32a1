"""`oncemq sub` and `unsub`: subscriptions begin and end."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from oncemq.cli.messages.command_state import finishing, state_option
from oncemq.cli.messages.sharing_options import Policy, shares
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import (
    SUBSCRIBER,
    TOPIC_OR_PATTERN,
    Reach,
    Start,
    is_pattern,
    json_option,
    reaches_broker,
)
from oncemq.cli.support.output import count_of, json_line

if TYPE_CHECKING:
    from oncemq import Client


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 9),
    examples="""
        oncemq sub orders kitchen
        oncemq sub orders accounting --from earliest
        oncemq sub "Cooking Recipes" alice
        oncemq sub "orders.*" audit
        oncemq sub orders packers --shared --tries-max 5
    """,
)
@click.argument("topic", type=TOPIC_OR_PATTERN)
@click.argument("subscriber", type=SUBSCRIBER)
@click.option("--from", "start", type=Start(), default="new", show_default=True, help="Where to begin.")
@click.option("--shared", is_flag=True, help="Any number of workers share the messages (`oncemq work`).")
@shares
@json_option
@state_option
@reaches_broker
def sub(
    topic: str,
    subscriber: str,
    start: str | int | datetime,
    shared: bool,
    policy: Policy,
    as_json: bool,
    state: str | None,
    reach: Reach,
) -> None:
    """Subscribe to a topic, or to all that match a pattern.

    From now on the broker keeps the topic's messages until this subscriber has acked them. A topic that does not
    exist is made; unless `put --create` or `topics create` asked for it, it goes with its last subscriber.
    Subscribing again changes nothing.

    In a pattern, `*` stands for one level of a topic's name and `#` for any number of them: `orders.*`, `#.eu`. It
    holds for topics that are made later, too; they begin with their first message.
    """
    _check(topic, shared, policy, reach)
    with finishing(reach, state) as client:
        if shared:
            created = make_shared(client, topic, subscriber, start, policy)
        else:
            created = make_subscription(client, topic, subscriber, start)
    if as_json:
        click.echo(json_line({"topic": topic, "subscriber": subscriber, "created": created}))
    elif created:
        click.echo(f"Subscribed {subscriber} to {topic}.")
    else:
        click.echo(f"{subscriber} was subscribed to {topic} before; nothing has changed.")


def _check(topic: str, shared: bool, policy: Policy, reach: Reach) -> None:
    if not shared:
        if policy.given():
            raise click.UsageError("--lease, --tries-max, --dead and --key-order are for --shared.")
        return
    if is_pattern(topic):
        raise click.UsageError("A subscription by pattern can't be shared.")
    policy.check(reach)


def make_subscription(client: Client, topic: str, subscriber: str, start: str | int | datetime) -> bool:
    """False: it was there before, and stays where it is."""
    if not is_pattern(topic):
        return client.subscribe(topic, subscriber, offset_of(client, topic, start)).created
    if isinstance(start, str):
        return client.subscribe_pattern(topic, subscriber, start).created
    if isinstance(start, int):
        raise click.UsageError("A pattern's topics have offsets of their own: begin at `new`, `earliest` or a time.")
    created = client.subscribe_pattern(topic, subscriber, "earliest").created
    if created:
        client.seek(topic, subscriber, start)
    return created


def make_shared(client: Client, topic: str, subscriber: str, start: str | int | datetime, policy: Policy) -> bool:
    with client.subscribe_shared(topic, subscriber, offset_of(client, topic, start), **policy.given()) as shared:
        return shared.created


def offset_of(client: Client, topic: str, start: str | int | datetime) -> str | int:
    """Where that is in the topic; a topic that is not there yet begins with its first message."""
    from oncemq.protocol.errors import TopicUnknown

    if not isinstance(start, datetime):
        return start
    try:
        return client.find(topic, start)
    except TopicUnknown:
        return "earliest"


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5, 9),
    advice=dict.fromkeys(("TOPIC_UNKNOWN", "NOT_SUBSCRIBED"), "`oncemq subs` lists the subscriptions."),
    examples="""
        oncemq unsub orders kitchen
        oncemq unsub "orders.*" audit
    """,
)
@click.argument("topic", type=TOPIC_OR_PATTERN)
@click.argument("subscriber", type=SUBSCRIBER)
@json_option
@state_option
@reaches_broker
def unsub(topic: str, subscriber: str, as_json: bool, state: str | None, reach: Reach) -> None:
    """End a subscription.

    What the subscriber had not yet acked is no longer kept for it. A topic that only subscribers had made goes
    with the last of them.
    """
    with finishing(reach, state) as client:
        going = _topics_that_go(client, topic, subscriber)
        client.unsubscribe(topic, subscriber)
    if as_json:
        entry = {"topic": topic, "subscriber": subscriber, "topic_removed": bool(going)}
        click.echo(json_line({**entry, "topics_removed": list(going), "messages_removed": sum(going.values())}))
        return
    click.echo(f"Unsubscribed {subscriber} from {topic}.")
    for name, messages in going.items():
        click.echo(f"It was the last subscriber: {name} is gone, with {count_of(messages, 'message')}.")


def _topics_that_go(client: Client, topic: str, subscriber: str) -> dict[str, int]:
    """With their only subscription: name → messages."""
    return {
        info.name: info.end_offset - info.first_offset
        for info in client.topics()
        if not info.stays and info.subscriptions == 1 and _is_of(client, info.name, topic, subscriber)
    }


def _is_of(client: Client, name: str, topic: str, subscriber: str) -> bool:
    """Whether a topic's only subscription is the one by this name or pattern."""
    from oncemq.protocol.errors import TopicUnknown

    if not is_pattern(topic):
        return name == topic
    try:
        found = client.subscriptions(name)
    except TopicUnknown:
        return False
    return any((entry.pattern, entry.subscriber) == (topic, subscriber) for entry in found)

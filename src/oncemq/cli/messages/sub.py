"""`oncemq sub` and `oncemq unsub`: create and delete subscriptions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from oncemq.cli.messages.command_state import state_option, stateful_client
from oncemq.cli.messages.shared_options import SharedOptions, shared_options
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import (
    SUBSCRIBER,
    TOPIC_OR_PATTERN,
    Reach,
    StartPosition,
    json_option,
    reaches_broker,
)
from oncemq.protocol.patterns import is_pattern
from oncemq.terminal import count_of, json_line, printable

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
@click.option("--from", "start", type=StartPosition(), default="new", show_default=True, help="Where to start.")
@click.option("--shared", is_flag=True, help="Share the messages among any number of workers (`oncemq work`).")
@shared_options
@json_option
@state_option
@reaches_broker
def sub(
    topic: str,
    subscriber: str,
    start: str | int | datetime,
    shared: bool,
    shared_options: SharedOptions,
    as_json: bool,
    state: str | None,
    reach: Reach,
) -> None:
    """Subscribe to a topic, or to all topics that match a pattern.

    From now on the broker keeps the topic's messages until this subscriber has acked them. If the topic does not exist,
    it is created; unless it was requested by `put --create` or `topics create`, it is deleted with its last
    subscription. Subscribing again changes nothing.

    In a pattern, `*` stands for one level of a topic's name and `#` for any number of levels: `orders.*`, `#.eu`. The
    pattern also applies to topics that are created later, from their first message on.
    """
    _check(topic, shared, shared_options, reach)
    with stateful_client(reach, state) as client:
        if shared:
            created = make_shared(client, topic, subscriber, start, shared_options)
        else:
            created = make_subscription(client, topic, subscriber, start)
    if as_json:
        click.echo(json_line({"topic": topic, "subscriber": subscriber, "created": created}))
    elif created:
        click.echo(f"Subscribed {subscriber} to {topic}.")
    else:
        click.echo(f"{subscriber} is already subscribed to {topic}; nothing has changed.")


def _check(topic: str, shared: bool, options: SharedOptions, reach: Reach) -> None:
    if not shared:
        if options.given():
            raise click.UsageError("--lease, --tries-max, --dead and --key-order need --shared.")
        return
    if is_pattern(topic):
        raise click.UsageError("A subscription by pattern can't be shared.")
    options.check(reach)


def make_subscription(client: Client, topic: str, subscriber: str, start: str | int | datetime) -> bool:
    """Subscribe. Returns False if the subscription exists; its position then stays as it is."""
    if not is_pattern(topic):
        return client.subscribe(topic, subscriber, offset_of(client, topic, start)).created
    if isinstance(start, str):
        return client.subscribe_pattern(topic, subscriber, start).created
    if isinstance(start, int):
        raise click.UsageError(
            "The topics of a pattern have offsets of their own: start at `new`, `earliest` or a time."
        )
    created = client.subscribe_pattern(topic, subscriber, "earliest").created
    if created:
        client.seek(topic, subscriber, start)
    return created


def make_shared(
    client: Client, topic: str, subscriber: str, start: str | int | datetime, options: SharedOptions
) -> bool:
    """Create a shared subscription. Returns False if it exists."""
    with client.subscribe_shared(topic, subscriber, offset_of(client, topic, start), **options.given()) as shared:
        return shared.created


def offset_of(client: Client, topic: str, start: str | int | datetime) -> str | int:
    """Return the offset of a time. A topic that does not exist yet starts with its first message."""
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
    """Delete a subscription.

    Messages that the subscriber has not acked are no longer kept for it. A topic that was created by a subscription is
    deleted with its last subscription.
    """
    with stateful_client(reach, state) as client:
        deleted = _topics_to_delete(client, topic, subscriber)
        client.unsubscribe(topic, subscriber)
    if as_json:
        entry = {"topic": topic, "subscriber": subscriber, "topic_removed": bool(deleted)}
        click.echo(json_line({**entry, "topics_removed": list(deleted), "messages_removed": sum(deleted.values())}))
        return
    click.echo(f"Unsubscribed {subscriber} from {topic}.")
    for name, messages in deleted.items():
        click.echo(f"It was the last subscriber: {printable(name)} is deleted, with {count_of(messages, 'message')}.")


def _topics_to_delete(client: Client, topic: str, subscriber: str) -> dict[str, int]:
    """Return the topics that are deleted with this subscription, and their numbers of messages."""
    return {
        info.name: info.end_offset - info.first_offset
        for info in client.topics()
        if not info.stays and info.subscriptions == 1 and _is_only(client, info.name, topic, subscriber)
    }


def _is_only(client: Client, name: str, topic: str, subscriber: str) -> bool:
    """Whether a topic's only subscription is this one, by name or by pattern."""
    from oncemq.protocol.errors import TopicUnknown

    if not is_pattern(topic):
        return name == topic
    try:
        found = client.subscriptions(name)
    except TopicUnknown:
        return False
    return any((entry.pattern, entry.subscriber) == (topic, subscriber) for entry in found)

"""`oncemq seek`: move the position of a subscription."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

import click

from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import (
    SUBSCRIBER,
    TOPIC_OR_PATTERN,
    Reach,
    StartPosition,
    connected,
    json_option,
    reaches_broker,
)
from oncemq.protocol.patterns import is_pattern
from oncemq.terminal import count_of, json_line

if TYPE_CHECKING:
    from oncemq import Client

_RELATIVE_TIME = re.compile(r"-\d[\d.]*\s*[a-z]+")


class RelativeTimeCommand(Documented):
    """A command with an argument that may begin with a minus sign, such as `-2h`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # With the Unicode minus sign it does not look like an option.
        changed = [f"\N{MINUS SIGN}{arg[1:]}" if _RELATIVE_TIME.fullmatch(arg) else arg for arg in args]
        return super().parse_args(ctx, changed)


class SeekPosition(StartPosition):
    """Where a subscription can be moved; `latest` is another name for `new`."""

    name = "earliest|new|OFFSET|TIME"
    words = ("earliest", "new", "latest")


@click.command(
    cls=RelativeTimeCommand,
    exits=(*BROKER_EXITS, 5),
    advice=dict.fromkeys(("TOPIC_UNKNOWN", "NOT_SUBSCRIBED"), "`oncemq subs` lists the subscriptions."),
    examples="""
        oncemq seek orders kitchen earliest
        oncemq seek orders kitchen 1200
        oncemq seek orders kitchen -2h
        oncemq seek orders kitchen 2026-01-31T12:00:00Z
        oncemq seek "orders.*" audit new
    """,
)
@click.argument("topic", type=TOPIC_OR_PATTERN)
@click.argument("subscriber", type=SUBSCRIBER)
@click.argument("to", type=SeekPosition(), metavar="earliest|new|OFFSET|TIME")
@json_option
@reaches_broker
def seek(topic: str, subscriber: str, to: str | int | datetime, as_json: bool, reach: Reach) -> None:
    """Move a subscription forward or back.

    The target is the `earliest` stored message, the end of the topic (`new` or `latest`), an offset, or the first
    message that was stored at a given time or later: ISO 8601 (without a zone: local time), or relative to now, such as
    -2h, -30m or -7d. The current consumer of the subscription continues there automatically.

    An inbox uses the position in its own database, and skips messages that it has already processed. To process them
    again, use `inbox.seek` in Python (docs/howto/inbox.md).
    """
    with connected(reach) as client:
        offset = client.seek(topic, subscriber, to)
        lag, topics = _lag(client, topic, subscriber)
    if as_json:
        position = {"topics": topics} if is_pattern(topic) else {"offset": offset}
        click.echo(json_line({"topic": topic, "subscriber": subscriber, **position, "lag": lag}))
        return
    where = f", {count_of(topics, 'topic')}" if is_pattern(topic) else f" to offset {offset}"
    click.echo(f"Moved {subscriber} on {topic}{where}: {count_of(lag, 'message')} to deliver.")


def _lag(client: Client, topic: str, subscriber: str) -> tuple[int, int]:
    """Return the number of messages to deliver, and the number of topics."""
    if is_pattern(topic):
        entries = [entry for entry in client.patterns() if (entry.pattern, entry.subscriber) == (topic, subscriber)]
        return sum(entry.lag for entry in entries), sum(entry.topics for entry in entries)
    found = client.subscriptions(topic)
    return sum(entry.lag for entry in found if entry.subscriber == subscriber and not entry.pattern), 1

"""`oncemq seek`: a subscription goes on elsewhere."""

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
    Start,
    connected,
    is_pattern,
    json_option,
    reaches_broker,
)
from oncemq.cli.support.output import count_of, json_line

if TYPE_CHECKING:
    from oncemq import Client

_RELATIVE = re.compile(r"-\d[\d.]*\s*[a-z]+")


class Seeking(Documented):
    """A command whose last argument may begin with a minus sign: `-2h`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # As a typographer's minus it does not look like an option.
        shown = [f"\N{MINUS SIGN}{arg[1:]}" if _RELATIVE.fullmatch(arg) else arg for arg in args]
        return super().parse_args(ctx, shown)


class Place(Start):
    """Where a subscription can go; `latest` is where `new` is."""

    name = "earliest|new|OFFSET|TIME"
    words = ("earliest", "new", "latest")


@click.command(
    cls=Seeking,
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
@click.argument("to", type=Place(), metavar="earliest|new|OFFSET|TIME")
@json_option
@reaches_broker
def seek(topic: str, subscriber: str, to: str | int | datetime, as_json: bool, reach: Reach) -> None:
    """Move a subscription forth or back.

    To the `earliest` message that is still stored, behind the last one (`new`, or `latest`), to an offset, or to the
    first message that was stored at a time or later: ISO 8601 (without a zone: local time), or relative to this
    moment, such as -2h, -30m or -7d. Whoever consumes the subscription goes on there by itself.

    An inbox goes by the position in its own database, and skips what that says is done: use `inbox.seek` in Python
    (docs/howto/inbox.md) to have it do messages again.
    """
    with connected(reach) as client:
        offset = client.seek(topic, subscriber, to)
        lag, topics = _lag(client, topic, subscriber)
    if as_json:
        place = {"topics": topics} if is_pattern(topic) else {"offset": offset}
        click.echo(json_line({"topic": topic, "subscriber": subscriber, **place, "lag": lag}))
        return
    where = f", {count_of(topics, 'topic')}" if is_pattern(topic) else f" to offset {offset}"
    click.echo(f"Moved {subscriber} on {topic}{where}: {count_of(lag, 'message')} to come.")


def _lag(client: Client, topic: str, subscriber: str) -> tuple[int, int]:
    """Messages to come, on so many topics."""
    if is_pattern(topic):
        entries = [entry for entry in client.patterns() if (entry.pattern, entry.subscriber) == (topic, subscriber)]
        return sum(entry.lag for entry in entries), sum(entry.topics for entry in entries)
    found = client.subscriptions(topic)
    return sum(entry.lag for entry in found if entry.subscriber == subscriber and not entry.pattern), 1

"""`oncemq subs`: list subscriptions and their lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import TOPIC_OR_PATTERN, Reach, connected, json_option, print_list, reaches_broker
from oncemq.protocol.patterns import is_pattern
from oncemq.terminal import table

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.protocol.replies import PatternInfo, SubscriptionInfo


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5),
    advice={**READ_ONLY_ADVICE, "TOPIC_UNKNOWN": "`oncemq topics` lists the topics."},
    examples="""
        oncemq subs
        oncemq subs orders
        oncemq subs "orders.*"
        oncemq subs --json | jq 'select(.lag > 1000)'
    """,
)
@click.argument("topic", type=TOPIC_OR_PATTERN, required=False)
@json_option
@reaches_broker
def subs(topic: str | None, as_json: bool, reach: Reach) -> None:
    """List subscriptions and their lag.

    The lag is the number of messages that the subscriber has not acked yet. For shared subscriptions, LEASED is the
    number of messages that workers hold, and WORKERS the number of workers. A subscription by pattern is listed once
    for each of its topics, and once for all of them together; in JSON the latter has no `topic`.
    """
    with connected(reach) as client:
        found, patterns = _find(client, topic)
    entries = [*map(_entry, found), *map(msgspec.structs.asdict, patterns)]
    print_list(entries, as_json, "There are no subscriptions.", lambda: _lines(found, patterns))


def _find(client: Client, topic: str | None) -> tuple[list[SubscriptionInfo], list[PatternInfo]]:
    if topic is not None and not is_pattern(topic):
        return client.subscriptions(topic), []
    found, patterns = client.subscriptions(), client.patterns()
    if topic is None:
        return found, patterns
    return (
        [entry for entry in found if entry.pattern == topic],
        [entry for entry in patterns if entry.pattern == topic],
    )


def _entry(entry: SubscriptionInfo) -> dict[str, Any]:
    sharing = None if entry.sharing is None else msgspec.structs.asdict(entry.sharing)
    return {**msgspec.structs.asdict(entry), "sharing": sharing, "lag": entry.lag}


def _lines(found: list[SubscriptionInfo], patterns: list[PatternInfo]) -> list[str]:
    lines = _table_of(found) if found else []
    if patterns:
        rows = [(entry.pattern, entry.subscriber, entry.topics, entry.lag) for entry in patterns]
        lines += [""] * bool(lines) + table(["PATTERN", "SUBSCRIBER", "TOPICS", "LAG"], rows)
    return lines


def _table_of(found: list[SubscriptionInfo]) -> list[str]:
    """Return the table, without columns that are empty for all subscriptions."""
    heads = ["TOPIC", "SUBSCRIBER", "ACKED", "END", "LAG"]
    rows = [(entry.topic, entry.subscriber, entry.acked, entry.end_offset, entry.lag) for entry in found]
    optional = {
        "PATTERN": [entry.pattern for entry in found],
        "LEASED": [f"{entry.leased:,}" if entry.sharing else "" for entry in found],
        "WORKERS": [f"{entry.members:,}" if entry.sharing else "" for entry in found],
        "DEAD LETTERS": [entry.sharing.dead_topic if entry.sharing else "" for entry in found],
        "DROPPED": [f"{entry.dropped:,}" if entry.dropped else "" for entry in found],
    }
    return table(heads, rows, optional)

"""`oncemq topics`: list, create, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oncemq.cli.command import BROKER_EXITS, LOOKING_ADVICE, Documented, DocumentedGroup
from oncemq.cli.options import TOPIC, Quantity, Reach, connected, json_option, reaches_broker
from oncemq.cli.output import bytes_text, confirm, duration_text, json_line, note, table

if TYPE_CHECKING:
    from oncemq.client import Client
    from oncemq.engine.replies import TopicInfo


@click.group(
    cls=DocumentedGroup,
    exits=(*BROKER_EXITS, 5),
    examples="""
        oncemq topics
        oncemq topics create orders --retain 7d
        oncemq topics rm orders
    """,
)
def topics() -> None:
    """List, create and remove topics.

    Alone, it lists them, as `oncemq topics ls` does.
    """


@topics.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=LOOKING_ADVICE,
    examples="""
        oncemq topics ls
        oncemq topics ls --json | jq -r .name
    """,
)
@json_option
@reaches_broker
def ls(as_json: bool, reach: Reach) -> None:
    """List topics: what they hold and for how many subscribers."""
    with connected(reach) as client:
        found = client.topics()
    if as_json:
        for topic in found:
            click.echo(json_line(topic))
        return
    if not found:
        note("There are no topics.")
        return
    heads = ["TOPIC", "FIRST", "END", "STORED", "SUBSCRIPTIONS", "STAYS", "RETAINS"]
    rows = [
        (
            topic.name,
            topic.first_offset,
            topic.end_offset,
            bytes_text(topic.stored_bytes),
            topic.subscriptions,
            "yes" if topic.stays else "no",
            _retention(topic.retain_ms, topic.retain_bytes),
        )
        for topic in found
    ]
    for line in table(heads, rows):
        click.echo(line)


def _retention(retain_ms: int, retain_bytes: int) -> str:
    parts = [duration_text(retain_ms)] if retain_ms else []
    parts += [bytes_text(retain_bytes)] if retain_bytes else []
    return ", ".join(parts) or "-"


@topics.command(
    cls=Documented,
    exits=BROKER_EXITS,
    examples="""
        oncemq topics create orders
        oncemq topics create orders --retain 7d --retain-bytes 10GiB
    """,
)
@click.argument("topic", type=TOPIC)
@click.option(
    "--retain",
    "retain_ms",
    type=Quantity("milliseconds"),
    default=0,
    metavar="TIME",
    help="Keep messages so long even when all have acked, such as 7d, 12h, 30min. [default: not]",
)
@click.option(
    "--retain-bytes",
    type=Quantity("bytes"),
    default=0,
    metavar="SIZE",
    help="Keep so much even when all have acked, such as 10GiB. [default: nothing]",
)
@json_option
@reaches_broker
def create(topic: str, retain_ms: int, retain_bytes: int, as_json: bool, reach: Reach) -> None:
    """Create a topic that stays until it is removed.

    Where it exists with the same retention, nothing changes. One that `sub` made stays from now on.
    """
    with connected(reach) as client:
        before = _find(client, topic)
        created = client.create_topic(topic, retain_ms=retain_ms, retain_bytes=retain_bytes)
    if as_json:
        click.echo(json_line({"topic": topic, "created": created}))
    elif created:
        click.echo(f"Created {topic}.")
    elif before is None or before.stays:
        click.echo(f"{topic} was there before.")
    else:
        kept = f", retaining {_retention(retain_ms, retain_bytes)}" if retain_ms or retain_bytes else ""
        click.echo(f"{topic} was there; it stays now{kept}.")


def _find(client: Client, name: str) -> TopicInfo | None:
    return next((info for info in client.topics() if info.name == name), None)


@topics.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5),
    advice={"TOPIC_UNKNOWN": "`oncemq topics` lists those that there are."},
    examples="""
        oncemq topics rm orders
        oncemq topics rm orders --yes
    """,
)
@click.argument("topic", type=TOPIC)
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
@reaches_broker
def rm(topic: str, yes: bool, as_json: bool, reach: Reach) -> None:
    """Remove a topic, its messages and its subscriptions."""
    from oncemq.errors import TopicUnknown

    if not yes:
        # Not while asking: a person may take longer than a connection lasts.
        with connected(reach) as client:
            found = _find(client, topic)
        if found is None:
            raise TopicUnknown(f"there is no topic '{topic}'")
        confirm(f"Remove {topic}, all its messages and subscriptions?")
    with connected(reach) as client:
        client.delete_topic(topic)
    click.echo(json_line({"topic": topic}) if as_json else f"Removed {topic}.")

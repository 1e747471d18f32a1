"""`oncemq topics`: list, create and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import (
    DURATION_MS,
    SIZE,
    TOPIC,
    Reach,
    connected,
    json_option,
    print_list,
    reaches_broker,
    yes_option,
)
from oncemq.terminal import bytes_text, confirm, duration_text, json_line, table

if TYPE_CHECKING:
    from oncemq.protocol.replies import TopicInfo


@click.group(
    cls=DocumentedGroup,
    exits=(*BROKER_EXITS, 5),
    examples="""
        oncemq topics
        oncemq topics create orders --retain 7d
        oncemq topics create orders --quota 1GiB --alter
        oncemq topics rm orders
    """,
)
def topics() -> None:
    """List, create and delete topics.

    Without a subcommand, it lists them, as `oncemq topics ls` does.
    """


@topics.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq topics ls
        oncemq topics ls --json | jq -r .name
    """,
)
@json_option
@reaches_broker
def ls(as_json: bool, reach: Reach) -> None:
    """List topics with their sizes and numbers of subscriptions."""
    with connected(reach) as client:
        found = client.topics()
    print_list(found, as_json, "There are no topics.", lambda: _table_of(found))


def _table_of(found: list[TopicInfo]) -> list[str]:
    """Return the table. The columns for quotas, delayed messages and schemas appear only if there are any."""
    heads = ["TOPIC", "FIRST", "END", "STORED", "SUBSCRIPTIONS", "STAYS", "RETAINS"]
    rows = [
        [
            topic.name,
            topic.first_offset,
            topic.end_offset,
            bytes_text(topic.stored_bytes),
            topic.subscriptions,
            "yes" if topic.stays else "no",
            _retention(topic.retain_ms, topic.retain_bytes),
        ]
        for topic in found
    ]
    optional = {
        "QUOTA": [_quota(topic.quota_bytes, topic.overflow) for topic in found],
        "DELAYED": [f"{topic.delayed:,}" if topic.delayed else "" for topic in found],
        "SCHEMA": [f"version {topic.schema_version}" if topic.schema_version else "" for topic in found],
    }
    return table(heads, rows, optional)


def _quota(quota_bytes: int, overflow: str) -> str:
    return f"{bytes_text(quota_bytes)}, {overflow}" if quota_bytes else ""


def _retention(retain_ms: int, retain_bytes: int) -> str:
    parts = [duration_text(retain_ms)] if retain_ms else []
    parts += [bytes_text(retain_bytes)] if retain_bytes else []
    return ", ".join(parts) or "-"


@topics.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice={
        "TOPIC_EXISTS": "Use it as it is, or change its settings with `--alter`.",
        "UNSUPPORTED": "Add `--overflow drop`, or leave out the quota or the retention.",
    },
    examples="""
        oncemq topics create orders
        oncemq topics create orders --retain 7d --retain-bytes 10GiB
        oncemq topics create readings --quota 1GiB --overflow drop
        oncemq topics create orders --retain 30d --alter
    """,
)
@click.argument("topic", type=TOPIC)
@click.option(
    "--retain",
    "retain_ms",
    type=DURATION_MS,
    metavar="TIME",
    help="Keep messages for this time even if all subscribers have acked them, such as 7d, 12h or 30m; a bare number "
    "is seconds. [default: none]",
)
@click.option(
    "--retain-bytes",
    type=SIZE,
    metavar="SIZE",
    help="Keep this many bytes even if all subscribers have acked them, such as 10GiB. [default: none]",
)
@click.option(
    "--quota",
    "quota_bytes",
    type=SIZE,
    metavar="SIZE",
    help="Maximum size of the topic, such as 1GiB. Together with a retention it needs --overflow drop. [default: "
    "limited by the disk]",
)
@click.option(
    "--overflow",
    type=click.Choice(["refuse", "drop", "expire"]),
    help="At the quota: refuse puts after a wait; drop the oldest messages, even if they are needed; or expire the "
    "slowest subscription. [default: refuse]",
)
@click.option("--alter", is_flag=True, help="If it exists, change the settings that are given, and keep the others.")
@json_option
@reaches_broker
def create(topic: str, alter: bool, as_json: bool, reach: Reach, **settings: Any) -> None:
    """Create a permanent topic.

    If it exists with the same settings, nothing changes. A topic that was created by `sub` becomes permanent.
    """
    from oncemq.client.internal import internal_api

    given = {name: value for name, value in settings.items() if value is not None}
    with connected(reach) as client:
        before = internal_api(client).find_topic(topic)
        asked = _settings_of(before) | given if alter and before is not None else given
        if "overflow" in given and not asked.get("quota_bytes"):
            raise click.UsageError("--overflow needs --quota.")
        created = client.create_topic(topic, **asked, alter=alter)
    is_changed = alter and before is not None and asked != _settings_of(before)
    if as_json:
        click.echo(json_line({"topic": topic, "created": created}))
    elif created:
        click.echo(f"Created {topic}.")
    elif before is None or before.stays:
        click.echo(f"{topic} already exists{'; its settings are changed' if is_changed else ''}.")
    else:
        kept = _retention(asked.get("retain_ms", 0), asked.get("retain_bytes", 0))
        click.echo(f"{topic} already exists; it is permanent now{'' if kept == '-' else f', and retains {kept}'}.")


def _settings_of(topic: TopicInfo) -> dict[str, Any]:
    return {name: getattr(topic, name) for name in ("retain_ms", "retain_bytes", "quota_bytes", "overflow")}


@topics.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5),
    advice={"TOPIC_UNKNOWN": "`oncemq topics` lists the topics."},
    examples="""
        oncemq topics rm orders
        oncemq topics rm orders --yes
    """,
)
@click.argument("topic", type=TOPIC)
@yes_option
@json_option
@reaches_broker
def rm(topic: str, yes: bool, as_json: bool, reach: Reach) -> None:
    """Delete a topic, its messages and its subscriptions."""
    from oncemq.client.internal import internal_api
    from oncemq.protocol.errors import TopicUnknown

    if not yes:
        # Not connected while asking: a person may take longer than a session lasts.
        with connected(reach) as client:
            found = internal_api(client).find_topic(topic)
        if found is None:
            raise TopicUnknown(f"there is no topic '{topic}'")
        confirm(f"Delete {topic}, all its messages and subscriptions?")
    with connected(reach) as client:
        client.delete_topic(topic)
    click.echo(json_line({"topic": topic}) if as_json else f"Deleted {topic}.")

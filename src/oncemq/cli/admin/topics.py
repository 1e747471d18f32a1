"""`oncemq topics`: list, create, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.support.command import BROKER_EXITS, LOOKING_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import TOPIC, Quantity, Reach, connected, json_option, reaches_broker
from oncemq.cli.support.output import bytes_text, confirm, duration_text, json_line, note, table

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
    for line in _table_of(found):
        click.echo(line)


def _table_of(found: list[TopicInfo]) -> list[str]:
    """Quotas and delayed messages only where there are any."""
    heads = ["TOPIC", "FIRST", "END", "STORED", "SUBSCRIPTIONS", "STAYS", "RETAINS"]
    rows: list[list[Any]] = [
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
    for head, cells in (
        ("QUOTA", [_quota(topic.quota_bytes, topic.overflow) for topic in found]),
        ("DELAYED", [f"{topic.delayed:,}" if topic.delayed else "" for topic in found]),
    ):
        if any(cells):
            heads.append(head)
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell or "-")
    return table(heads, rows)


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
    type=Quantity("milliseconds"),
    metavar="TIME",
    help="Keep messages so long even when all have acked, such as 7d, 12h, 30m. [default: not]",
)
@click.option(
    "--retain-bytes",
    type=Quantity("bytes"),
    metavar="SIZE",
    help="Keep so much even when all have acked, such as 10GiB. [default: nothing]",
)
@click.option(
    "--quota",
    "quota_bytes",
    type=Quantity("bytes"),
    metavar="SIZE",
    help="Store no more than that, such as 1GiB; beside a retention, with --overflow drop only. [default: what the "
    "disk takes]",
)
@click.option(
    "--overflow",
    type=click.Choice(["refuse", "drop", "expire"]),
    help="At the quota: puts wait and are refused; the oldest messages go, whoever needs them; or the slowest "
    "subscription ends. [default: refuse]",
)
@click.option("--alter", is_flag=True, help="Where it exists: change the settings that are given, keep the others.")
@json_option
@reaches_broker
def create(topic: str, alter: bool, as_json: bool, reach: Reach, **settings: Any) -> None:
    """Create a topic that stays until it is removed.

    Where it exists with the same settings, nothing changes. One that `sub` made stays from now on.
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
        click.echo(f"{topic} was there before{'; its settings are changed' if is_changed else ''}.")
    else:
        kept = _retention(asked.get("retain_ms", 0), asked.get("retain_bytes", 0))
        click.echo(f"{topic} was there; it stays now{'' if kept == '-' else f', retaining {kept}'}.")


def _settings_of(topic: TopicInfo) -> dict[str, Any]:
    return {name: getattr(topic, name) for name in ("retain_ms", "retain_bytes", "quota_bytes", "overflow")}


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
    from oncemq.client.internal import internal_api
    from oncemq.protocol.errors import TopicUnknown

    if not yes:
        # Not while asking: a person may take longer than a connection lasts.
        with connected(reach) as client:
            found = internal_api(client).find_topic(topic)
        if found is None:
            raise TopicUnknown(f"there is no topic '{topic}'")
        confirm(f"Remove {topic}, all its messages and subscriptions?")
    with connected(reach) as client:
        client.delete_topic(topic)
    click.echo(json_line({"topic": topic}) if as_json else f"Removed {topic}.")

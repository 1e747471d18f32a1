"""`oncemq health`: show the state of a running broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import Reach, connected, json_option, reaches_broker
from oncemq.terminal import bytes_text, duration_text, json_line, styled

if TYPE_CHECKING:
    from oncemq.protocol.replies import HealthReply


@click.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq health
        oncemq health --timeout 0.5 --tries 1 && echo up
        oncemq health --json | jq .writable_bytes
    """,
)
@json_option
@reaches_broker
def health(as_json: bool, reach: Reach) -> None:
    """Show the state of a broker.

    Exit code 0 means that it answers.
    """
    with connected(reach) as client:
        found = client.health()
    if as_json:
        click.echo(json_line(found))
        return
    counters = dict(found.counters)
    facts = [
        ("version", found.version),
        ("broker", found.broker_id),
        # Only administrators and viewers are told.
        *([("journal", found.journal)] if found.journal else []),
        ("running for", duration_text(found.uptime_ms)),
        ("topics", f"{found.topics:,}"),
        ("sessions", f"{found.sessions:,}"),
        ("space for messages", _space_text(found)),
        *_clock(counters.pop("clock_behind_ms", 0)),
        *((name.replace("_", " "), f"{value:,}") for name, value in sorted(counters.items())),
    ]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{name.ljust(width)}  {value}")


def _clock(behind_ms: int) -> list[tuple[str, str]]:
    if not behind_ms:
        return []
    text = f"{duration_text(behind_ms)} behind the system clock: check it, then restart the broker with --trust-clock"
    return [("clock", styled(text, fg="red"))]


def _space_text(found: HealthReply) -> str:
    if found.writable_bytes == 0:
        return styled("none: the disk is full, and puts are refused", fg="red")
    return bytes_text(found.writable_bytes) if found.is_free_space_known else "unknown"

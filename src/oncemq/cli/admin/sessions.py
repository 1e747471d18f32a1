"""`oncemq sessions`: whose numbered commands the broker remembers."""

from __future__ import annotations

import time

import click

from oncemq.cli.support.command import BROKER_EXITS, LOOKING_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import SESSION, Reach, connected, json_option, reaches_broker
from oncemq.cli.support.output import confirm, duration_text, json_line, note, table


@click.group(
    cls=DocumentedGroup,
    exits=BROKER_EXITS,
    examples="""
        oncemq sessions
        oncemq sessions rm old-importer
    """,
)
def sessions() -> None:
    """List and remove sessions.

    Alone, it lists them, as `oncemq sessions ls` does. An anonymous one ends with its client, or goes a day after its
    last command. A named one stays until it is removed: those of named clients, and `outbox-…`, of outboxes and of what
    put, get, sub and unsub keep (`--state`). Where an outbox's file is gone for good, its session can go too.
    """


@sessions.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=LOOKING_ADVICE,
    examples="""
        oncemq sessions ls
        oncemq sessions ls --json | jq -r 'select(.anonymous | not) | .name'
    """,
)
@json_option
@reaches_broker
def ls(as_json: bool, reach: Reach) -> None:
    """List sessions and when they last did something."""
    with connected(reach) as client:
        found = client.sessions()
    if as_json:
        for session in found:
            click.echo(json_line(session))
        return
    if not found:
        note("There are no sessions.")
        return
    now_ms = time.time() * 1000
    rows = [
        (
            session.name,
            "anonymous" if session.anonymous else "named",
            session.epoch,
            session.last_number,
            duration_text(max(0.0, now_ms - session.active_ms)) + " ago",
        )
        for session in found
    ]
    for line in table(["SESSION", "KIND", "EPOCH", "COMMANDS", "ACTIVE"], rows):
        click.echo(line)


@sessions.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1),
    advice={"SESSION_UNKNOWN": "`oncemq sessions` lists those that there are."},
    examples="""
        oncemq sessions rm old-importer
        oncemq sessions rm old-importer --yes
    """,
)
@click.argument("session", type=SESSION)
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
@reaches_broker
def rm(session: str, yes: bool, as_json: bool, reach: Reach) -> None:
    """Remove a session: the broker forgets which of its commands it has seen.

    A client that still uses it gets an error, and what it resends can no longer be recognised.
    """
    if not yes:
        confirm(f"Forget {session}? A client that still resends commands may repeat them.")
    with connected(reach) as client:
        client.remove_session(session)
    click.echo(json_line({"session": session}) if as_json else f"Removed {session}.")

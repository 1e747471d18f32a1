"""`oncemq sessions`: the sessions whose command numbers the broker remembers."""

from __future__ import annotations

import time

import click

from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import SESSION, Reach, connected, json_option, print_list, reaches_broker, yes_option
from oncemq.terminal import confirm, duration_text, json_line, table


@click.group(
    cls=DocumentedGroup,
    exits=BROKER_EXITS,
    examples="""
        oncemq sessions
        oncemq sessions rm old-importer
    """,
)
def sessions() -> None:
    """List and delete sessions.

    Without a subcommand, it lists them, as `oncemq sessions ls` does. An anonymous session is deleted when its client
    closes it, or one day after its last command. A named session exists until it is deleted: those of named clients,
    and `outbox-…`, which belong to outboxes and to the --state of put, get, sub and unsub. If the file of an outbox is
    permanently lost, its session can be deleted.
    """


@sessions.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq sessions ls
        oncemq sessions ls --json | jq -r 'select(.anonymous | not) | .name'
    """,
)
@json_option
@reaches_broker
def ls(as_json: bool, reach: Reach) -> None:
    """List sessions and when they were last active."""
    with connected(reach) as client:
        found = client.sessions()
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
    heads = ["SESSION", "KIND", "EPOCH", "COMMANDS", "ACTIVE"]
    print_list(found, as_json, "There are no sessions.", lambda: table(heads, rows))


@sessions.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1),
    advice={"SESSION_UNKNOWN": "`oncemq sessions` lists the sessions."},
    examples="""
        oncemq sessions rm old-importer
        oncemq sessions rm old-importer --yes
    """,
)
@click.argument("session", type=SESSION)
@yes_option
@json_option
@reaches_broker
def rm(session: str, yes: bool, as_json: bool, reach: Reach) -> None:
    """Delete a session: the broker forgets which of its commands it has seen.

    A client that still uses the session gets an error, and its retries are no longer deduplicated.
    """
    if not yes:
        confirm(f"Delete session {session}? Commands that its client retries may be executed twice.")
    with connected(reach) as client:
        client.remove_session(session)
    click.echo(json_line({"session": session}) if as_json else f"Deleted {session}.")

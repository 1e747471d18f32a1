"""`oncemq keys`: the idempotency keys that the broker remembers."""

from __future__ import annotations

import time

import click

from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import (
    PRINCIPAL,
    Reach,
    connected,
    existing_keys,
    json_option,
    print_list,
    reaches_broker,
    yes_option,
)
from oncemq.terminal import confirm, count_of, duration_text, json_line, table


@click.group(
    cls=DocumentedGroup,
    exits=BROKER_EXITS,
    examples="""
        oncemq keys
        oncemq keys rm --principal http order-17
    """,
)
def keys() -> None:
    """List and free idempotency keys.

    Without a subcommand, it lists who has how many, as `oncemq keys ls` does. A request with a key happens once: the
    broker remembers the key for seven days. Each principal can have a limited number of keys
    (`limits.keys_per_principal_max`); at the limit, its new keys are refused with KEYS_FULL. Requests over HTTP have
    the principal `http`, unless they name one; those of the text gateway have `text`, and messages that are pushed with
    an id have `push/ORIGIN`.
    """


@keys.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq keys ls
        oncemq keys ls --principal http --json | jq -r .key
    """,
)
@click.option("--principal", type=PRINCIPAL, help="List the keys of this principal.")
@json_option
@reaches_broker
def ls(principal: str | None, as_json: bool, reach: Reach) -> None:
    """List principals with the number of their keys, or the keys of one of them."""
    with connected(reach) as client:
        if principal is None:
            shares = client.key_principals()
            rows = [(share.owner, share.entries) for share in shares]
            print_list(shares, as_json, "There are no keys.", lambda: table(["PRINCIPAL", "KEYS"], rows))
            return
        found = client.keys(principal)
    now_ms = time.time() * 1000
    aged = [(info.key, duration_text(max(0.0, now_ms - info.time_ms)) + " ago") for info in found]
    print_list(found, as_json, f"Principal {principal} has no keys.", lambda: table(["KEY", "USED"], aged))


@keys.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1),
    advice={"REFUSED": "`oncemq keys ls --principal NAME` lists the keys of a principal."},
    examples="""
        oncemq keys rm --principal http order-17 order-18
        oncemq keys rm --principal loadtest --all --yes
    """,
)
@click.option("--principal", type=PRINCIPAL, required=True, help="The principal whose keys are freed.")
@click.option("--all", "is_all", is_flag=True, help="Free all keys of the principal.")
@click.argument("key", nargs=-1)
@yes_option
@json_option
@reaches_broker
def rm(principal: str, is_all: bool, key: tuple[str, ...], yes: bool, as_json: bool, reach: Reach) -> None:
    """Free keys before they expire: the broker forgets that it has seen them.

    A request that is repeated under a freed key is executed again. Free only keys whose requests are not repeated any
    more.
    """
    if is_all == bool(key):
        raise click.UsageError("Give the keys to free, or --all.")
    with connected(reach) as client:
        known = [info.key for info in client.keys(principal)]
        freed = known if is_all else existing_keys(key, known, f"principal {principal}")
        what = f"{count_of(len(freed), 'key')} of {principal}"
        if not yes:
            confirm(f"Free {what}? Requests that are repeated under them are executed again.")
        client.remove_keys(principal, freed)
    click.echo(json_line({"principal": principal, "keys": len(freed)}) if as_json else f"Freed {what}.")

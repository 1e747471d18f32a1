"""`oncemq registry`: what gateways have stored in the broker."""

from __future__ import annotations

import click

from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import (
    NAMESPACE,
    Reach,
    connected,
    existing_keys,
    json_option,
    print_list,
    reaches_broker,
    yes_option,
)
from oncemq.terminal import confirm, json_line, table


@click.group(
    cls=DocumentedGroup,
    exits=BROKER_EXITS,
    examples="""
        oncemq registry
        oncemq registry rm queue producer/P1
    """,
)
def registry() -> None:
    """List and delete entries of the registry.

    Without a subcommand, it lists the namespaces, as `oncemq registry ls` does. Gateways store in the registry what
    must survive them: the producers and consumers of the HTTP queue, the receivers of push and datagrams, and which
    request got which message. Each namespace can have a limited number of entries
    (`limits.registry_entries_per_namespace_max`); at the limit, new ones are refused with LIMIT_REACHED.
    """


@registry.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq registry ls
        oncemq registry ls queue --prefix producer/ --json | jq -r .key
    """,
)
@click.argument("namespace", type=NAMESPACE, required=False)
@click.option("--prefix", default="", help="List only keys that start with this.")
@json_option
@reaches_broker
def ls(namespace: str | None, prefix: str, as_json: bool, reach: Reach) -> None:
    """List namespaces with the number of their entries, or the entries of one of them."""
    with connected(reach) as client:
        if namespace is None:
            shares = client.registry_namespaces()
            counts = [(share.owner, share.entries) for share in shares]
            print_list(shares, as_json, "The registry is empty.", lambda: table(["NAMESPACE", "ENTRIES"], counts))
            return
        entries = client.registry_list(namespace, prefix)
    found = [{"key": entry.key, "version": entry.version, "bytes": len(entry.value)} for entry in entries]
    rows = [(entry.key, entry.version, len(entry.value)) for entry in entries]
    print_list(found, as_json, "There are no such entries.", lambda: table(["KEY", "VERSION", "BYTES"], rows))


@registry.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1),
    advice={"REFUSED": "`oncemq registry ls NAMESPACE` lists the keys of a namespace."},
    examples="""
        oncemq registry rm queue producer/P1
        oncemq registry rm queue --prefix producer/loadtest- --yes
    """,
)
@click.argument("namespace", type=NAMESPACE)
@click.argument("key", nargs=-1)
@click.option("--prefix", help="Delete all entries whose keys start with this.")
@yes_option
@json_option
@reaches_broker
def rm(namespace: str, key: tuple[str, ...], prefix: str | None, yes: bool, as_json: bool, reach: Reach) -> None:
    """Delete entries: the gateway forgets what they say.

    A producer of the HTTP queue has to register again, and a receiver of push or datagrams has to subscribe again. A
    gateway that runs may know an entry until it is restarted.
    """
    if (prefix is None) != bool(key):
        raise click.UsageError("Give the keys to delete, or --prefix.")
    with connected(reach) as client:
        known = [entry.key for entry in client.registry_list(namespace, prefix or "")]
        found = existing_keys(key, known, f"namespace {namespace}") if key else known
        what = f"{len(found):,} {'entry' if len(found) == 1 else 'entries'} of {namespace}"
        if not yes:
            confirm(f"Delete {what}? The gateway forgets what they say.")
        for each in found:
            client.registry_set(namespace, each, None)
    click.echo(json_line({"namespace": namespace, "entries": len(found)}) if as_json else f"Deleted {what}.")

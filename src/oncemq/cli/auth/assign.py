"""`oncemq auth assign`: give what belongs to one user to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import Reach, connected, json_option, reaches_broker
from oncemq.protocol.commands import ASSIGNABLE, ENTRY, SUBSCRIPTION
from oncemq.terminal import json_line, printable, utf8

if TYPE_CHECKING:
    from oncemq.client.admin import Assignable

#: Kinds whose names consist of two parts: what the first one is.
_PARENTS = {SUBSCRIPTION: "TOPIC", ENTRY: "NAMESPACE"}
_NAMES = {SUBSCRIPTION: "SUBSCRIBER", ENTRY: "KEY"}


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 10),
    advice={"MALFORMED": "`oncemq subs`, `oncemq sessions` and `oncemq registry` list what there is."},
    examples="""
        oncemq auth assign kitchen subscription orders chef
        oncemq auth assign kitchen session importer
        oncemq auth assign '' writer nightly
    """,
)
@click.argument("user")
@click.argument("kind", type=click.Choice(ASSIGNABLE), metavar="KIND")
@click.argument("names", metavar="[TOPIC|NAMESPACE] NAME", nargs=-1, required=True)
@json_option
@reaches_broker
def assign(user: str, kind: Assignable, names: tuple[str, ...], as_json: bool, reach: Reach) -> None:
    """Give a subscription, session, writer or entry to another user.

    Each belongs to the user who created it, and nobody else can use it. KIND is subscription (of a TOPIC or pattern),
    session, writer (of stages) or entry (of the registry, in a NAMESPACE). An empty USER means nobody: then the next
    user who uses it becomes its owner. Only for administrators.
    """
    if len(names) != 1 + (kind in _PARENTS):
        form = f"{_PARENTS[kind]} {_NAMES[kind]}" if kind in _PARENTS else "NAME"
        raise click.UsageError(f"Use: oncemq auth assign USER {kind} {form}")
    *of, name = (utf8(text, "a name") for text in names)
    with connected(reach) as client:
        client.assign(user, kind, name, of=of[0] if of else "")
    if as_json:
        click.echo(json_line({"owner": user, "kind": kind, "name": name, "of": of[0] if of else ""}))
        return
    what = f"{kind} {name}" + (f" of {of[0]}" if of else "")
    click.echo(printable(f"The {what} belongs to {user or 'nobody'} now."))

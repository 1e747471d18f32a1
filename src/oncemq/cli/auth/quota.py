"""`oncemq auth quota`: the limits of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from oncemq.auth.users import Quotas
from oncemq.cli.auth.local_broker import activate
from oncemq.cli.auth.location import ADVICE, find_user, locates_users, reload_option
from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import json_option
from oncemq.config.sources import parse_quantity
from oncemq.terminal import json_line, table

if TYPE_CHECKING:
    from oncemq.config.settings import ServeSettings


@click.command(
    cls=Documented,
    exits=(0, 2),
    advice=ADVICE,
    examples="""
        oncemq auth quota kitchen
        oncemq auth quota kitchen connections=20 stored_bytes=1GiB
        oncemq auth quota kitchen topics=0
    """,
)
@click.argument("user")
@click.argument("limits", metavar="[NAME=VALUE]...", nargs=-1)
@json_option
@reload_option
@locates_users()
def quota(user: str, limits: tuple[str, ...], as_json: bool, no_reload: bool, settings: ServeSettings) -> None:
    """Set and list the quotas of a user.

    Without NAME=VALUE it lists them. 0 means no limit, which is the default. Numbers of bytes can be written as 64MiB.
    The names are connections, in_flight_bytes, stored_bytes (of the topics that the user has created), messages_per_s,
    topics, subscriptions, sessions, keys and registry_entries.
    """
    from oncemq.auth import edit

    if limits:
        edit.set_quotas(settings.auth_file, user, dict(map(_parse, limits)))
    quotas = msgspec.structs.asdict(find_user(user, settings).quotas)
    if as_json:
        click.echo(json_line({"user": user, **quotas}))
    else:
        for line in table(
            ["QUOTA", "LIMIT"], [[name, f"{limit:,}" if limit else "-"] for name, limit in quotas.items()]
        ):
            click.echo(line)
    if limits:
        activate(settings, no_reload=no_reload)


def _parse(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or name not in Quotas.__struct_fields__:
        names = ", ".join(Quotas.__struct_fields__)
        raise click.BadParameter(f"{text!r} is not NAME=VALUE; the names are {names}.", param_hint="NAME=VALUE")
    try:
        limit = parse_quantity(value, "bytes" if name.endswith("_bytes") else "")
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="NAME=VALUE") from None
    return name, int(limit)

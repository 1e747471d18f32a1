"""`oncemq auth grant`, `revoke` and `check`: the rules of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oncemq.auth.rules import VERBS
from oncemq.cli.auth.local_broker import activate
from oncemq.cli.auth.location import ADVICE, find_user, locates_users, reload_option
from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import json_option
from oncemq.protocol.errors import Forbidden
from oncemq.terminal import json_line, note, printable

if TYPE_CHECKING:
    from oncemq.config.settings import ServeSettings

_ROLE = "role"
_user_argument = click.argument("user")
_verb_argument = click.argument("verb", type=click.Choice([*VERBS, _ROLE]), metavar="VERB|role")
_of_argument = click.argument("of", metavar="TOPIC|ROLE")


@click.command(
    cls=Documented,
    exits=(0, 2),
    advice=ADVICE,
    examples="""
        oncemq auth grant kitchen consume 'orders.*'
        oncemq auth grant kitchen role viewer
    """,
)
@_user_argument
@_verb_argument
@_of_argument
@reload_option
@locates_users()
def grant(user: str, verb: str, of: str, no_reload: bool, settings: ServeSettings) -> None:
    """Give a user a right, or a role.

    A right is a verb and a topic, or a pattern of topics (`orders.*` has one more level, `orders.#` any number, `#` is
    all topics). The verbs are describe, read, consume, write, create, configure, delete and all.
    """
    from oncemq.auth import edit

    if not edit.grant(settings.auth_file, user, f"{verb} {of}"):
        click.echo(f"{user} has the rule `{verb} {of}` already.")
        return
    click.echo(f"{user} has the rule `{verb} {of}` now.")
    activate(settings, no_reload=no_reload)


@click.command(
    cls=Documented,
    exits=(0, 2),
    advice=ADVICE,
    examples="""
        oncemq auth revoke kitchen consume 'orders.*'
        oncemq auth revoke kitchen role viewer
    """,
)
@_user_argument
@_verb_argument
@_of_argument
@reload_option
@locates_users()
def revoke(user: str, verb: str, of: str, no_reload: bool, settings: ServeSettings) -> None:
    """Take a right or a role from a user.

    The rule must be given as it is in auth.toml. What waits for messages by this right ends.
    """
    from oncemq.auth import edit

    edit.revoke(settings.auth_file, user, f"{verb} {of}")
    click.echo(f"{user} has the rule `{verb} {of}` no more.")
    remaining = "" if verb == _ROLE else find_user(user, settings).rights.deciding_rule(verb, of)
    if remaining:
        note(f"{user} may still {verb} {of}: `{remaining}` grants it.")
    activate(settings, no_reload=no_reload)


@click.command(
    cls=Documented,
    exits=(0, 2, 10),
    advice=ADVICE,
    examples="""
        oncemq auth check kitchen consume orders.eu
        oncemq auth check kitchen read 'orders.#' --json
    """,
)
@_user_argument
@click.argument("verb", type=click.Choice([*VERBS]), metavar="VERB")
@click.argument("topic")
@json_option
@locates_users()
@click.pass_context
def check(ctx: click.Context, /, user: str, verb: str, topic: str, as_json: bool, settings: ServeSettings) -> None:
    """Say whether a user may do something, and by which rule.

    A pattern instead of a topic asks for the right on all topics that match it. What the file says is checked, which a
    running broker may not have read yet. Exit code 10 means no.
    """
    rule = find_user(user, settings).rights.deciding_rule(verb, topic)
    if as_json:
        click.echo(json_line({"user": user, "verb": verb, "topic": topic, "allowed": bool(rule), "rule": rule}))
    elif rule:
        click.echo(printable(f"yes: {rule}"))
    else:
        click.echo(printable(f"no: no rule of {user} grants {verb} on {topic}"))
    if not rule:
        ctx.exit(Forbidden.exit_code)

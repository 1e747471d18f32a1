"""`oncemq auth token`: the tokens of a user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncemq.cli.auth.local_broker import activate
from oncemq.cli.auth.location import ADVICE, find_user, locates_users, reload_option
from oncemq.cli.support.command import Documented
from oncemq.cli.support.options import json_option, print_list
from oncemq.protocol.errors import OnceMQError, SettingInvalid
from oncemq.terminal import note, table

if TYPE_CHECKING:
    from oncemq.config.settings import ServeSettings


@click.command(
    cls=Documented,
    exits=(0, 2),
    advice=ADVICE,
    examples="""
        oncemq auth token kitchen
        oncemq auth token kitchen --out kitchen.token
        oncemq auth token kitchen --ls
        oncemq auth token kitchen --rm k3v9x2aa
    """,
)
@click.argument("user")
@click.option("--ls", "is_list", is_flag=True, help="List the ids of the tokens.")
@click.option("--rm", "removed", metavar="ID", help="Remove the token with this id. Its connections end.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token to a file with mode 0600, for `token_file` of a client. An older token in it is replaced.",
)
@json_option
@reload_option
@locates_users()
def token(
    user: str,
    is_list: bool,
    removed: str | None,
    out: Path | None,
    as_json: bool,
    no_reload: bool,
    settings: ServeSettings,
) -> None:
    """Create, list and remove tokens of a user.

    A new token is printed once, alone on standard output; auth.toml gets only its hash. To replace a token without
    interruption, create another one, give it to the client, and then remove the former one. A client that uses a token
    file finds the new token by itself.
    """
    if is_list + (removed is not None) + (out is not None) > 1:
        raise click.UsageError("--ls, --rm and --out can't be combined.")
    if as_json and not is_list:
        raise click.UsageError("--json needs --ls.")
    if is_list:
        _list(user, as_json, settings)
    elif removed is not None:
        from oncemq.auth import edit

        edit.remove_token(settings.auth_file, user, removed)
        click.echo(f"Removed {removed} of {user}.")
        activate(settings, no_reload=no_reload)
    else:
        _create(user, out, no_reload, settings)


def _list(user: str, as_json: bool, settings: ServeSettings) -> None:
    found = [{"user": user, "id": token_id} for token_id in find_user(user, settings).tokens]
    rows = [[entry["id"]] for entry in found]
    print_list(found, as_json, f"{user} has no tokens.", lambda: table(["ID"], rows))


def _create(user: str, out: Path | None, no_reload: bool, settings: ServeSettings) -> None:
    from oncemq.auth import edit
    from oncemq.auth.private_file import write_private
    from oncemq.auth.tokens import token_id

    if out is not None:
        _check_file(out)
    created = edit.add_token(settings.auth_file, user)
    try:
        # Before anybody can use the token: a client that finds it too early would be refused.
        activate(settings, no_reload=no_reload)
        if out is not None:
            write_private(out, created + "\n")
    except (OnceMQError, OSError):
        edit.remove_token(settings.auth_file, user, token_id(created))
        raise
    if out is None:
        note(f"This is the new token of {user}, with the id {token_id(created)}. It is not displayed again.")
        note("Clients use it as `connect(url, token=…)`, as ONCEMQ_TOKEN, or from a file as ONCEMQ_TOKEN_FILE.")
        click.echo(created)
    else:
        note(f"Wrote a new token of {user}, with the id {token_id(created)}, to {out}.")


def _check_file(out: Path) -> None:
    """Raise SettingInvalid if the file is something else than a token."""
    from oncemq.auth.tokens import token_id

    try:
        text = out.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError):
        text = "?"
    if text and not token_id(text):
        raise SettingInvalid(f"{out} exists and contains no token; it is not replaced")

"""`oncemq auth user`: the users of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.auth.local_broker import activate
from oncemq.cli.auth.location import ADVICE, locates_users, reload_option
from oncemq.cli.support.command import Documented, DocumentedGroup
from oncemq.cli.support.options import json_option, print_list, yes_option
from oncemq.terminal import confirm, count_of, table

if TYPE_CHECKING:
    from oncemq.auth.users import User
    from oncemq.config.settings import ServeSettings


@click.group(
    cls=DocumentedGroup,
    exits=(0, 1, 2),
    examples="""
        oncemq auth user
        oncemq auth user add kitchen --allow 'consume orders.*' --allow 'write meals'
        oncemq auth user rm kitchen
    """,
)
def user() -> None:
    """Add, remove and list users.

    Without a subcommand, it lists them, as `oncemq auth user ls` does.
    """


@user.command(
    cls=Documented,
    exits=(0, 2),
    advice=ADVICE,
    examples="""
        oncemq auth user add alice --role admin
        oncemq auth user add kitchen --allow 'consume orders.*' --allow 'write meals' --role viewer
    """,
)
@click.argument("name")
@click.option(
    "--allow",
    multiple=True,
    metavar="'VERB TOPIC'",
    help="A right, such as 'consume orders.*'; a topic may be a pattern. The verbs are describe, read, consume, write, "
    "create, configure, delete and all. May be repeated.",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="NAME",
    help="A role: admin, viewer, gateway, or one that auth.toml defines. May be repeated.",
)
@reload_option
@locates_users()
def add(name: str, allow: tuple[str, ...], roles: tuple[str, ...], no_reload: bool, settings: ServeSettings) -> None:
    """Add a user, who needs a token or a key to log in.

    The first user creates auth.toml. From the moment a broker reads it, nobody can connect without credentials.
    """
    from oncemq.auth import edit

    edit.add_user(settings.auth_file, name, (*allow, *(f"role {role}" for role in roles)))
    click.echo(f"Added {name} to {settings.auth_file}. `oncemq auth token {name}` creates a token.")
    activate(settings, no_reload=no_reload)


@user.command(
    cls=Documented,
    exits=(0, 1, 2),
    advice=ADVICE,
    examples="""
        oncemq auth user rm kitchen
        oncemq auth user rm kitchen --yes
    """,
)
@click.argument("name")
@yes_option
@reload_option
@locates_users()
def rm(name: str, yes: bool, no_reload: bool, settings: ServeSettings) -> None:
    """Remove a user with all credentials. Its connections end.

    What belongs to the user stays: `oncemq auth assign` gives it to another one.
    """
    from oncemq.auth import edit
    from oncemq.auth.file import load

    if not yes:
        known = load(settings.auth_file).by_name
        if name in known:
            confirm(f"Remove {name} with {count_of(len(known[name].tokens), 'token')}?")
    edit.remove_user(settings.auth_file, name)
    click.echo(f"Removed {name} from {settings.auth_file}.")
    activate(settings, no_reload=no_reload)


@user.command(
    cls=Documented,
    exits=(0, 2),
    advice=ADVICE,
    examples="""
        oncemq auth user ls
        oncemq auth user ls --json | jq -r .user
    """,
)
@json_option
@locates_users()
def ls(as_json: bool, settings: ServeSettings) -> None:
    """List users with their credentials, rules and quotas. There are no secrets in the list."""
    from oncemq.auth.file import load

    found = [_entry(user) for user in load(settings.auth_file).by_name.values()]
    print_list(found, as_json, "There are no users.", lambda: _table_of(found))


def _entry(user: User) -> dict[str, Any]:
    import msgspec

    quotas = msgspec.structs.asdict(user.quotas)
    return {
        "user": user.name,
        "tokens": list(user.tokens),
        "curve": sorted(user.curve),
        "certificates": sorted(user.certificates),
        "roles": sorted(user.rights.roles),
        "rules": [{"verb": rule.verb, "topic": rule.pattern, "role": rule.role} for rule in user.rights.rules],
        "quotas": {name: limit for name, limit in quotas.items() if limit},
    }


def _table_of(found: list[dict[str, Any]]) -> list[str]:
    heads = ["USER", "TOKENS", "ROLES", "RULES"]
    rows = [[entry["user"], len(entry["tokens"]), ", ".join(entry["roles"]) or "-", _rules(entry)] for entry in found]
    optional = {
        "CURVE": [count_of(len(entry["curve"]), "key") if entry["curve"] else "" for entry in found],
        "CERTIFICATES": [", ".join(entry["certificates"]) for entry in found],
        "QUOTAS": [", ".join(f"{name}={limit}" for name, limit in entry["quotas"].items()) for entry in found],
    }
    return table(heads, rows, optional)


def _rules(entry: dict[str, Any]) -> str:
    """Return the user's own rules: those of roles are not repeated for each user."""
    own = [f"{rule['verb']} {rule['topic']}" for rule in entry["rules"] if not rule["role"]]
    return ", ".join(own) or "-"

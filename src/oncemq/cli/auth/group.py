"""`oncemq auth`: the list of its commands. Each one is in a module of its own, which is imported on use."""

from __future__ import annotations

import click

from oncemq.cli.support.command import Documented, Lazy, LazyGroup

_USERS, _KEYS, _BROKER = "Users", "Encryption", "Running broker"

COMMANDS = {
    "user": Lazy("oncemq.cli.auth.user:user", _USERS, "Add, remove and list users."),
    "token": Lazy("oncemq.cli.auth.token:token", _USERS, "Create, list and remove tokens of a user."),
    "grant": Lazy("oncemq.cli.auth.rules:grant", _USERS, "Give a user a right, or a role."),
    "revoke": Lazy("oncemq.cli.auth.rules:revoke", _USERS, "Take a right or a role from a user."),
    "check": Lazy("oncemq.cli.auth.rules:check", _USERS, "Say whether a user may do something, and by which rule."),
    "quota": Lazy("oncemq.cli.auth.quota:quota", _USERS, "Set and list the quotas of a user."),
    "keys": Lazy("oncemq.cli.auth.keys:keys", _KEYS, "Create the certificate and the keys of a broker or a client."),
    "reload": Lazy("oncemq.cli.auth.reload:reload", _BROKER, "Let a broker read its users and keys again."),
    "assign": Lazy(
        "oncemq.cli.auth.assign:assign", _BROKER, "Give a subscription, session, writer or entry to another user."
    ),
}


class AuthGroup(Documented, LazyGroup):
    pass


@click.group(
    cls=AuthGroup,
    lazy=COMMANDS,
    exits=(0, 1, 2, 10),
    examples="""
        oncemq auth user add alice --role admin
        oncemq auth token alice --out alice.token
        oncemq auth keys --host broker.example
        oncemq auth grant kitchen consume 'orders.*'
        oncemq auth check kitchen consume orders.eu
    """,
)
def auth() -> None:
    """Manage users, tokens, rules and keys of a broker.

    They are in auth.toml and in the folder `keys`, both in the data folder of the broker. Run the commands on its
    machine, with the same --data. As long as there is no auth.toml, everybody who reaches the broker may do
    everything. docs/howto/secure.md shows how to begin.
    """

"""`oncemq shell`: put and receive messages interactively; with history and completion at a terminal."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

import click

from oncemq.cli.messages.command_state import default_folder
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import SESSION, Reach, connected, reaches_broker
from oncemq.cli.support.signals import orderly_exit
from oncemq.terminal import is_terminal, utf8

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.tools.shell.display import Display
    from oncemq.tools.shell.session import Session


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 3, 5, 7, 141, 143),
    examples="""
        oncemq shell
        oncemq shell --as alice --url oncemq://127.0.0.1:5554
        printf 'sub orders\\nput orders "one pizza"\\n' | oncemq shell
        oncemq shell --role publisher
        oncemq shell --role subscriber --as bob
    """,
)
@click.option(
    "--as",
    "name",
    metavar="NAME",
    type=SESSION,
    help="Name of the subscriber; its subscriptions are permanent. [default: a random name, whose subscriptions are "
    "deleted at the end]",
)
@click.option(
    "--role",
    type=click.Choice(["publisher", "subscriber"]),
    help="Offer only one side: a prompt for `<topic> <message>`, or for sub, unsub and list topics.",
)
@reaches_broker
def shell(name: str | None, role: str | None, reach: Reach) -> None:
    """Put and receive messages interactively.

    The commands are `put TOPIC MESSAGE`, `sub TOPIC`, `unsub TOPIC`, `get TOPIC`, `create TOPIC`, `list topics`, `help`
    and `quit`. Messages of your subscriptions appear above the prompt as `topic: message`. Each is acked after it was
    shown; messages that were not shown are delivered next time. The shell continues after a restart of the broker.

    At a terminal it has colours, a history, and completion of commands and topics with Tab; this needs `pip install
    'oncemq[shell]'`. From a pipe it reads lines and prints plain text, without extra packages. Its exit code is then
    that of the first line that failed.
    """
    if name == "":
        raise click.UsageError("--as needs a name. Without --as, the shell chooses one.")
    is_interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    if is_interactive:
        _check_extra()
    with orderly_exit(), connected(reach, client_name=name) as client:
        code = _run(client, name, role, is_interactive)
    sys.exit(code)


def _check_extra() -> None:
    from importlib.util import find_spec

    from oncemq.protocol.errors import MissingExtra

    if find_spec("prompt_toolkit") is None:
        raise MissingExtra(
            "prompt_toolkit is not installed: run pip install 'oncemq[shell]', or send lines through a pipe"
        )


def _run(client: Client, name: str | None, role: str | None, is_interactive: bool) -> int:
    from oncemq.tools.shell import plain
    from oncemq.tools.shell.roles import make_session

    subscriber = random_name() if name is None else utf8(name, "the name of a subscriber")

    def make(display: Display) -> Session:
        return make_session(role, client, subscriber, display, permanent=name is not None)

    if not is_interactive:
        return plain.run(make)
    from oncemq.tools.shell import prompt

    return prompt.run(make, default_folder())


def random_name() -> str:
    """Return a readable name that no other shell has."""
    import getpass

    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "shell"
    return f"{user}-{secrets.token_hex(3)}"

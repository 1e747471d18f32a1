"""`oncemq shell`: put and receive by hand. At a terminal with history and completion, from a pipe as plain lines."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

import click

from oncemq.cli.messages.command_state import default_folder
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import SESSION, Reach, connected, reaches_broker, utf8
from oncemq.cli.support.output import is_terminal
from oncemq.cli.support.signals import orderly

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.tools.shell.screen import Screen
    from oncemq.tools.shell.session import Session


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 3, 5, 7, 141, 143),
    examples="""
        oncemq shell
        oncemq shell --as alice --url tcp://127.0.0.1:5555
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
    help="Who you are as a subscriber; your subscriptions stay. [default: a name for this shell, whose subscriptions "
    "end with it]",
)
@click.option(
    "--role",
    type=click.Choice(["publisher", "subscriber"]),
    help="Only one side: a prompt for `<topic> <message>`, or for sub, unsub and list topics.",
)
@reaches_broker
def shell(name: str | None, role: str | None, reach: Reach) -> None:
    """Put and receive messages by hand, at a prompt.

    `put TOPIC MESSAGE`, `sub TOPIC`, `unsub TOPIC`, `get TOPIC`, `create TOPIC`, `list topics`, `help`, `quit`.
    Messages of what you are subscribed to appear above the prompt as `topic: message`; each is acked after it was
    shown, so what you have not seen comes the next time. A broker that restarts meanwhile does no harm.

    At a terminal it has colours, a history over sessions, and completes commands and topics with Tab: this needs
    `pip install 'oncemq[shell]'`. From a pipe it reads lines, prints plain text, and needs nothing; its exit code is
    that of the first line that went wrong.
    """
    if name == "":
        raise click.UsageError("--as needs a name. Without --as, the shell has one of its own.")
    is_interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    if is_interactive:
        _check_extra()
    with orderly(), connected(reach, client_name=name) as client:
        code = _run(client, name, role, is_interactive)
    sys.exit(code)


def _check_extra() -> None:
    from importlib.util import find_spec

    from oncemq.protocol.errors import MissingExtra

    if find_spec("prompt_toolkit") is None:
        raise MissingExtra("prompt_toolkit is not installed: pip install 'oncemq[shell]'; without it, pipe lines in")


def _run(client: Client, name: str | None, role: str | None, is_interactive: bool) -> int:
    from oncemq.tools.shell import plain
    from oncemq.tools.shell.roles import ROLES

    own_name = utf8(name, "a subscriber's name") if name is not None else name_of_its_own()

    def make(screen: Screen) -> Session:
        return ROLES[role](client, own_name, screen, stays=name is not None)

    if not is_interactive:
        return plain.run(make)
    from oncemq.tools.shell import prompt

    return prompt.run(make, default_folder())


def name_of_its_own() -> str:
    """Readable, and nobody else's."""
    import getpass

    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "shell"
    return f"{user}-{secrets.token_hex(3)}"

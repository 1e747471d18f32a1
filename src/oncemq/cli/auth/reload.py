"""`oncemq auth reload`: let a running broker read its users and keys again."""

from __future__ import annotations

from pathlib import Path

import click

from oncemq.cli.auth.location import ADVICE
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import Reach, connected, reaches_broker
from oncemq.protocol.errors import BrokerAway


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 10),
    advice={
        **READ_ONLY_ADVICE,
        **ADVICE,
        "UNAUTHENTICATED": "Use the token of a user with the role admin, or `--data DIR` on the machine of the broker.",
        "FORBIDDEN": "Use the token of a user with the role admin, or `--data DIR` on the machine of the broker.",
    },
    examples="""
        oncemq auth reload --data ./oncemq-data
        oncemq auth reload --url oncemq://broker.example:5554
    """,
)
@click.option(
    "--data",
    metavar="DIR",
    help="Signal the broker that runs on this data folder, instead of connecting to a broker as an administrator.",
)
@reaches_broker
def reload(data: str | None, reach: Reach) -> None:
    """Let a broker read its users and keys again.

    It reads auth.toml, the certificate and the keys. If they are not valid, it refuses, says why, and continues with
    the former ones. Connections whose credentials were removed end; new ones get the new certificate.
    """
    if data is None:
        with connected(reach) as client:
            client.auth_reload()
        click.echo("The broker has read its users and keys again.")
        return
    _reload_local(data, reach)


def _reload_local(data: str, reach: Reach) -> None:
    from oncemq.auth.file import load
    from oncemq.auth.status import running
    from oncemq.cli.auth import local_broker
    from oncemq.config import sources

    settings = sources.load_serve({"data": data, "config": reach["config"]})
    status = running(Path(settings.folder))
    if status is None:
        raise BrokerAway(f"no broker runs on {settings.folder}")
    # The broker checks it too; here the error comes without a signal.
    load(Path(status.file))
    local_broker.reload(status, settings)
    click.echo(f"The broker (pid {status.pid}) has read its users and keys again.")

"""`oncemq gateway NAME`: another protocol for a broker that runs elsewhere. `oncemq serve` runs its own beside it."""

from __future__ import annotations

import json
from typing import Any

import click

from oncemq import config
from oncemq.cli import logs
from oncemq.cli.command import Documented, DocumentedGroup
from oncemq.cli.options import Function, config_option, warn_of_unknown_variables
from oncemq.cli.output import warn
from oncemq.cli.serve import flag, given

_FIELDS = (
    "http", "http_body_bytes_max", "http_connections_max", "http_origins", "http_hosts", "insecure", "log_level",
    "log_format",
)  # fmt: skip


def _with_settings(function: Function) -> Function:
    for setting in reversed(config.SERVE_SETTINGS):
        if setting.field in _FIELDS:
            function = flag(setting)(function)
    return function


@click.group(
    cls=DocumentedGroup,
    exits=(0, 1, 2),
    examples="""
        oncemq gateway http --http 127.0.0.1:8080
    """,
)
def gateway() -> None:
    """Serve another protocol for a broker: HTTP.

    `oncemq serve` starts an HTTP gateway by itself. Another one may run on another machine than the broker, or for
    a broker and its standby.
    """


@gateway.command(
    cls=Documented,
    exits=(0, 1, 2),
    examples="""
        oncemq gateway http --http 127.0.0.1:8080
        oncemq gateway http --broker tcp://127.0.0.1:5555 --broker tcp://127.0.0.1:5556
        oncemq gateway http --openapi > openapi.json
    """,
)
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="URL",
    help="The broker's address, and those of its standbys. [default: the setting client.url]",
)
@click.option("--openapi", is_flag=True, help="Print the OpenAPI document of all that it serves, and end.")
@_with_settings
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input does.")
@config_option
@click.pass_context
def http(ctx: click.Context, /, brokers: tuple[str, ...], openapi: bool, with_parent: bool, **flags: Any) -> None:
    """Serve HTTP for a broker.

    It stores nothing and may be stopped at any time: SIGTERM lets it answer what it has in hand.
    """
    if openapi:
        _print_document()
        return
    warn_of_unknown_variables()
    settings = config.load_serve(given(flags))
    address = config.HTTP_ADDRESS if settings.http in ("auto", "none") else settings.http
    logs.set_up(settings.log_level, settings.log_format)
    if not with_parent and config.is_open_http(address):
        warn(f"http://{address} can be reached from other machines, and anybody who reaches it may read and write.")

    from oncemq.client.transport import split_urls
    from oncemq.gateways.http.server import run
    from oncemq.gateways.http.settings import GatewaySettings

    found = GatewaySettings(
        brokers=brokers or tuple(split_urls(config.load_client({"config": flags["config"]}).url)),
        http=address,
        body_bytes_max=settings.http_body_bytes_max,
        connections_max=settings.http_connections_max,
        origins=settings.http_origins,
        hosts=settings.http_hosts,
        with_parent=with_parent,
    )
    ctx.exit(run(found, lambda url: click.echo(f"HTTP at {url}, for {' and '.join(found.brokers)}.")))


def _print_document() -> None:
    from oncemq.gateways.http.app import ENDPOINTS
    from oncemq.gateways.http.openapi import document

    click.echo(json.dumps(document(ENDPOINTS), indent=2, ensure_ascii=False))

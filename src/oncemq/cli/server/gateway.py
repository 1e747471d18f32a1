"""`oncemq gateway NAME`: serve another protocol for a broker. `oncemq serve` runs gateways of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

from oncemq.cli.server import logs
from oncemq.cli.server.serve import flag, given
from oncemq.cli.support.command import ADVICE, Documented, DocumentedGroup
from oncemq.cli.support.options import (
    Function,
    config_option,
    context_option,
    credential_options,
    warn_of_unknown_variables,
)
from oncemq.config import sources
from oncemq.config.addresses import GATEWAY_ADDRESSES, STREAM_UNIX, gateway_address
from oncemq.config.exposure import check_exposure, exposures
from oncemq.config.settings import ServeSettings
from oncemq.net.curve import load as load_curve
from oncemq.protocol import errors
from oncemq.terminal import warn

if TYPE_CHECKING:
    from oncemq.client.gateway_api import Credentials
    from oncemq.gateways.contract import Gateway

_EXITS = (0, 1, 2)
_COMMON_SETTINGS = ("keys", "insecure", "log_level", "log_format")


def _options(*names: str) -> Callable[[Function], Function]:
    """Return a decorator that adds the options for the broker and the settings of these gateways."""

    def decorate(function: Function) -> Function:
        function = _with_parent_option(config_option(function))
        settings = [setting for setting in sources.SERVE_SETTINGS if setting.field in (*names, *_COMMON_SETTINGS)]
        for name in names:
            settings += sources.GATEWAY_SETTINGS[name]
        for setting in reversed(settings):
            # A gateway that is started by name always listens.
            function = flag(setting, default=GATEWAY_ADDRESSES.get(setting.field, ""))(function)
        for option in (*credential_options, context_option):
            function = option(function)
        return _broker_option(function)

    return decorate


def _broker_option(function: Function) -> Function:
    return click.option(
        "--broker",
        "brokers",
        multiple=True,
        metavar="URL[,URL...]",
        help="Address of the broker, or of the broker and its standbys. May be repeated. [default: the setting "
        "client.url, or the current context]",
    )(function)


_with_parent_option = click.option(
    "--with-parent", is_flag=True, hidden=True, help="Exit when standard input is closed."
)


@click.group(
    cls=DocumentedGroup,
    exits=_EXITS,
    examples="""
        oncemq gateway http --http 127.0.0.1:8080
        oncemq gateway text --broker oncemq://127.0.0.1:5554
    """,
)
def gateway() -> None:
    """Serve HTTP, text, push or datagrams for a broker.

    `oncemq serve` starts an HTTP gateway automatically, and the others with --text, --push and --udp. A separate
    gateway can run on another machine, or for a broker and its standby. A gateway stores nothing and can be stopped at
    any time: after SIGTERM it answers pending requests and exits.
    """


def _command(*names: str, examples: str, hidden: bool = False) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function that serves these protocols."""

    def decorate(function: Callable[..., None]) -> click.Command:
        command = gateway.command(cls=Documented, exits=_EXITS, hidden=hidden, examples=examples)
        return command(_options(*names)(click.pass_context(function)))

    return decorate


@gateway.command(
    cls=Documented,
    exits=_EXITS,
    examples="""
        oncemq gateway http --http 127.0.0.1:8080
        oncemq gateway http --broker oncemq://127.0.0.1:5554,oncemq://127.0.0.1:5654
        oncemq gateway http --openapi > openapi.json
    """,
)
@click.option("--openapi", is_flag=True, help="Print the OpenAPI document of all endpoints, and exit.")
@_options("http")
@click.pass_context
def http(ctx: click.Context, /, openapi: bool, **flags: Any) -> None:
    """Serve HTTP: topics and subscriptions under /v1, and the queue API for producers and consumers.

    docs/howto/http.md has examples; the gateway documents all endpoints at /docs.
    """
    if openapi:
        _print_document()
        return
    _run(ctx, ("http",), flags)


def _print_document() -> None:
    from oncemq.gateways.http.docs.openapi import document
    from oncemq.gateways.http.endpoints import ENDPOINTS

    click.echo(json.dumps(document(ENDPOINTS), indent=2, ensure_ascii=False))


@_command(
    "text",
    examples="""
        oncemq gateway text
        oncemq gateway text --text 127.0.0.1:6000 --broker oncemq://127.0.0.1:5554
    """,
)
def text(ctx: click.Context, /, **flags: Any) -> None:
    """Serve text over ZeroMQ REQ sockets: sub, put, get and unsub from any language, without a client library.

    docs/howto/text.md describes the two forms of requests; one of them is exactly-once.
    """
    _run(ctx, ("text",), flags)


@_command(
    "push",
    examples="""
        oncemq gateway push
        oncemq gateway push --push 127.0.0.1:6100 --broker oncemq://127.0.0.1:5554
        oncemq gateway push --push 127.0.0.1:6100 --push-name second --push-feed-listen ipc:///tmp/feed
    """,
)
def push(ctx: click.Context, /, **flags: Any) -> None:
    """Serve ZeroMQ PUB and SUB sockets: a live feed for subscribers, or reliable delivery until each message is acked.

    It listens on three consecutive ports: publishers, feed, acks. docs/howto/push.md describes the protocol.
    """
    _run(ctx, ("push",), flags)


@_command(
    "udp",
    examples="""
        oncemq gateway udp
        oncemq gateway udp --udp 127.0.0.1:6200 --broker oncemq://127.0.0.1:5554
    """,
)
def udp(ctx: click.Context, /, **flags: Any) -> None:
    """Serve datagrams: plain ones that a person can type, and numbered ones that are exactly-once.

    docs/howto/datagrams.md describes every packet.
    """
    _run(ctx, ("udp",), flags)


@_command(*GATEWAY_ADDRESSES, hidden=True, examples="oncemq gateway several --http none --text auto --push auto")
def several(ctx: click.Context, /, **flags: Any) -> None:
    """Serve all protocols that are not `none` in one process. `oncemq serve` runs this."""
    _run(ctx, tuple(name for name in GATEWAY_ADDRESSES if flags[name] != "none"), flags)


def _run(ctx: click.Context, names: tuple[str, ...], flags: dict[str, Any]) -> None:
    with_parent, brokers = flags.pop("with_parent"), flags.pop("brokers")
    reach = {name: flags.pop(name) for name in ("context", "token_file", "tls")}
    warn_of_unknown_variables()
    settings = sources.load_serve(given(flags))
    logs.set_up(settings.log_level, settings.log_format)
    for name in names:
        if flags[name] == "none":
            raise errors.SettingInvalid(f"--{name} none leaves nothing to serve. Give HOST:PORT, or omit the flag.")
    # A gateway that is started by name listens even if the setting for `serve` is `none`.
    addresses = {name: gateway_address(name, getattr(settings, name)) for name in names}
    addresses = {name: address or GATEWAY_ADDRESSES[name] for name, address in addresses.items()}

    from oncemq.client.gateway_api import Credentials, check_urls, split_urls
    from oncemq.server.gateway_process import run

    if with_parent:
        brokers = tuple(split_urls(",".join(brokers)))
        # The parent, which is the broker, hands its token over first.
        credentials = Credentials(token=sys.stdin.readline().strip())
    else:
        brokers, credentials = _reach({**reach, "url": ",".join(brokers) or None, "config": flags["config"]})
        _check_exposure(settings, addresses, has_users=bool(credentials.token or credentials.token_file))
    check_urls(brokers)
    address_flags = " or ".join(f"`--{name}`" for name in names)
    ctx.meta[ADVICE] = {
        "LISTEN_FAILED": f"Another process may listen there: stop it, or choose another address with {address_flags}."
    }
    gateways = [_make(name, address, brokers, settings, credentials) for name, address in addresses.items()]
    started = dict(zip(addresses, gateways, strict=True))
    # Where the gateways of `serve` connect is nobody's business if it is a socket of their own.
    shown = () if with_parent and brokers[0].startswith(STREAM_UNIX) else brokers
    ctx.exit(run(gateways, lambda _: _announce(started, shown), with_parent=with_parent))


def _reach(flags: Mapping[str, Any]) -> tuple[tuple[str, ...], Credentials]:
    """Return the addresses of the broker, and the gateway's credentials."""
    from oncemq.client.gateway_api import credentials_of, split_urls

    endpoint = sources.choose_endpoint(flags).endpoint
    urls = tuple(split_urls(endpoint.url))
    return urls, credentials_of(endpoint, urls)


def _check_exposure(settings: ServeSettings, addresses: Mapping[str, str], *, has_users: bool) -> None:
    """Raise SettingInvalid, or warn. (`serve` has done so for its own gateways.) A gateway with a token belongs to a
    broker with users."""
    own = msgspec.structs.replace(settings, listen=(), **{**dict.fromkeys(GATEWAY_ADDRESSES, "none"), **addresses})
    check_exposure(own, has_users=has_users)
    for exposure in exposures(own, has_users=has_users):
        warn(exposure.warning)


def _make(
    name: str, address: str, brokers: tuple[str, ...], settings: ServeSettings, credentials: Credentials
) -> Gateway:
    options = msgspec.structs.asdict(getattr(settings, f"{name}_options"))
    options["credentials"] = credentials
    if name in ("text", "push"):
        options["curve"] = load_curve(settings.keys_folder)
    if name == "text":
        from oncemq.gateways.text.gateway import TextGateway
        from oncemq.gateways.text.settings import TextSettings

        return TextGateway(brokers, TextSettings(listen=f"tcp://{address}", **options))
    if name == "push":
        from oncemq.gateways.push.gateway import PushGateway
        from oncemq.gateways.push.settings import PushSettings

        host, _, port = address.rpartition(":")
        publish, feed, acks = (f"tcp://{host}:{int(port) + index}" for index in range(3))
        return PushGateway(brokers, PushSettings(publish=publish, feed=feed, acks=acks, **options))
    if name == "udp":
        from oncemq.gateways.udp.gateway import UdpGateway
        from oncemq.gateways.udp.settings import UdpSettings

        return UdpGateway(brokers, UdpSettings(listen=address, **options))
    from oncemq.gateways.http.gateway import HttpGateway
    from oncemq.gateways.http.settings import GatewaySettings

    return HttpGateway(GatewaySettings(brokers=brokers, http=address, keys=str(settings.keys_folder), **options))


_KINDS = {"http": "HTTP", "text": "Text", "udp": "Datagrams"}


def _announce(started: Mapping[str, Gateway], brokers: tuple[str, ...]) -> None:
    for name, each in started.items():
        of = f", for {' and '.join(brokers)}" if brokers else ""
        click.echo(f"{_addresses_text(name, each.addresses)}{of}.")


def _addresses_text(name: str, addresses: list[str]) -> str:
    if name != "push":
        return f"{_KINDS[name]} at {', '.join(addresses)}"
    publish, *feeds, acks = addresses
    return f"Push: publish at {publish}, feed at {' and '.join(feeds)}, acks at {acks}"

"""`oncemq serve`: the broker in the foreground. Every setting of it is a flag as well."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import click

from oncemq.cli.server import logs
from oncemq.cli.support.command import ADVICE, Documented
from oncemq.cli.support.options import Function, config_option, warn_of_unknown_variables
from oncemq.cli.support.output import warn
from oncemq.config import sources
from oncemq.config.addresses import DEFAULT_URL, GATEWAY_ADDRESSES
from oncemq.config.ports import check_ports
from oncemq.config.settings import ServeSettings


def flag(setting: sources.Setting, *, hidden: bool = False, default: str = "") -> Any:
    """A setting as an option. Its value stays text: config.py reads it, as it does with the environment's.
    `default`: where the command has another one than the setting."""
    default = default or _default(setting)
    rest: dict[str, Any] = {"help": f"{setting.description} [default: {default}]", "hidden": hidden}
    kind = sources.plain_kind(setting)
    if kind is bool:
        rest |= {"is_flag": True, "default": None, "help": setting.description}
        return click.option(setting.flag, setting.field, **rest)
    if typing.get_origin(kind) is typing.Literal:
        rest["type"] = click.Choice(typing.get_args(kind))
    elif kind == tuple[str, ...]:
        rest |= {"multiple": True, "metavar": _METAVARS_OF_ONE.get(setting.field, "URL"), "default": None}
    else:
        rest["metavar"] = _METAVARS.get(setting.key) or _METAVARS_OF_UNITS.get(setting.unit, "N")
    if setting.field in GATEWAY_ADDRESSES:
        # The flag alone will do.
        rest |= {"is_flag": False, "flag_value": "auto"}
    return click.option(setting.flag, setting.field, **rest)


_METAVARS = {"data": "DIR", "journal": "URL", "name": "NAME", **dict.fromkeys(GATEWAY_ADDRESSES, "[HOST:PORT]")}
_METAVARS_OF_UNITS = {"bytes": "SIZE", "milliseconds": "TIME"}
#: Of settings that hold several.
_METAVARS_OF_ONE = {"http_origins": "ORIGIN", "http_hosts": "NAME"}


def _default(setting: sources.Setting) -> str:
    default = setting.default
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    return sources.format_quantity(default, setting.unit) if isinstance(default, int) else default or "none"


def _with_settings(function: Function) -> Function:
    for settings in sources.GATEWAY_SETTINGS.values():
        for setting in settings:
            # There are too many of them to be read here.
            function = flag(setting, hidden=True)(function)
    for setting in reversed(sources.SERVE_SETTINGS):
        function = flag(setting)(function)
    return function


@click.command(
    cls=Documented,
    exits=(0, 1, 2, 9),
    examples="""
        oncemq serve
        oncemq serve --data /var/lib/oncemq --log-format json
        oncemq serve --listen tcp://127.0.0.1:7000,ipc:///run/oncemq.sock
        oncemq serve --text --push --udp
        oncemq serve --journal postgresql://localhost/queue
        oncemq serve --journal postgresql://oncemq@db.example/oncemq
        ONCEMQ_DATA=/var/lib/oncemq oncemq serve --config /etc/oncemq.toml
    """,
)
@_with_settings
@config_option
@click.pass_context
def serve(ctx: click.Context, /, **flags: Any) -> None:
    """Run a broker.

    It stores everything in one folder, and stops on Ctrl-C or SIGTERM: it answers what it has begun, syncs, takes
    a snapshot, and ends with 0. Killed any other way, it recovers at the next start, without a loss of anything
    that it had answered. On PostgreSQL, start two of them: one waits as a standby, and takes over when the other one
    is gone. Beside the broker runs the HTTP gateway, unless `--http none` says otherwise. Each flag is also a setting
    of oncemq.toml and an ONCEMQ_ variable. What else can be set of a gateway, `oncemq gateway NAME --help` shows; its
    flags are flags of `serve` too.
    """
    warn_of_unknown_variables()
    settings = sources.load_serve(given(flags))
    check_ports(settings)
    logs.set_up(settings.log_level, settings.log_format)
    for folder in _missing_folders(settings):
        ctx.meta[ADVICE] = {"LISTEN_FAILED": f"The folder {folder} does not exist: make it, or listen elsewhere."}
    for address in sources.open_addresses(settings):
        warn(f"{address} can be reached from other machines, and anybody who reaches it may read and write.")

    from oncemq.server.serve import serve as serve_broker

    addresses: list[str] = []
    ctx.exit(serve_broker(settings, lambda address: _announce(address, addresses, settings), click.echo))


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """A flag that may be given several times and was not is none."""
    return {name: None if value == () else value for name, value in flags.items()}


def _missing_folders(settings: ServeSettings) -> list[Path]:
    """Where a socket of the file system can't be made."""
    folders = [Path(address.removeprefix("ipc://")).parent for address in settings.listen if "ipc://" in address]
    return [folder for folder in folders if not folder.is_dir()]


def _announce(address: str, addresses: list[str], settings: ServeSettings) -> None:
    """The first thing that people see of a broker: where it is, and what to do with it."""
    addresses.append(address)
    if len(addresses) < len(settings.listen):
        return
    click.echo(f"OnceMQ listens on {' and '.join(addresses)}, and stores in {settings.store}. Ctrl-C stops it. Try:")
    address = addresses[0]
    # A standby announces itself with each of its turns.
    addresses.clear()
    where = "" if address == DEFAULT_URL else f" --url {address}"
    for command in ("sub orders kitchen", 'put orders "one pizza"', "get orders kitchen"):
        click.echo(f"  oncemq {command}{where}")

"""`oncemq serve`: run the broker in the foreground. Every setting of it is also a flag."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from oncemq.cli.server import logs
from oncemq.cli.support.command import ADVICE, Documented
from oncemq.cli.support.options import Function, config_option, warn_of_unknown_variables
from oncemq.config import sources
from oncemq.config.addresses import DEFAULT_URL, GATEWAY_ADDRESSES, unix_path
from oncemq.config.exposure import check_exposure, exposures
from oncemq.config.ports import check_ports
from oncemq.config.settings import ServeSettings
from oncemq.terminal import warn


def flag(setting: sources.Setting, *, hidden: bool = False, default: str = "") -> Any:
    """Return a setting as an option. Its value stays text: config/sources.py parses it like environment variables.

    `default`: the default to show, if the command has another one than the setting.
    """
    default = default or _default(setting)
    rest: dict[str, Any] = {"help": f"{setting.description} [default: {default}]", "hidden": hidden}
    kind = sources.plain_kind(setting)
    if kind is bool:
        rest |= {"is_flag": True, "default": None, "help": setting.description}
        return click.option(setting.flag, setting.field, **rest)
    if typing.get_origin(kind) is typing.Literal:
        rest["type"] = click.Choice(typing.get_args(kind))
    elif kind == tuple[str, ...]:
        rest |= {"multiple": True, "metavar": _METAVARS_OF_LISTS.get(setting.field, "URL"), "default": None}
    else:
        rest["metavar"] = _METAVARS.get(setting.key) or _METAVARS_OF_UNITS.get(setting.unit, "N")
    if setting.field in GATEWAY_ADDRESSES:
        # The flag without a value chooses the default address.
        rest |= {"is_flag": False, "flag_value": "auto"}
    return click.option(setting.flag, setting.field, **rest)


_METAVARS = {
    "data": "DIR",
    "auth": "FILE",
    "audit": "FILE",
    "keys": "DIR",
    "journal": "URL",
    "name": "NAME",
    "plain_user": "USER",
    **dict.fromkeys(GATEWAY_ADDRESSES, "[HOST:PORT]"),
}
_METAVARS_OF_UNITS = {"bytes": "SIZE", "milliseconds": "TIME"}
#: For settings with several values.
_METAVARS_OF_LISTS = {"http_origins": "ORIGIN", "http_hosts": "NAME"}


def _default(setting: sources.Setting) -> str:
    default = setting.default
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    return sources.format_quantity(default, setting.unit) if isinstance(default, int) else default or "empty"


def _with_settings(function: Function) -> Function:
    for settings in sources.GATEWAY_SETTINGS.values():
        for setting in settings:
            # The help would be too long with all of them.
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
        oncemq serve --listen oncemq://127.0.0.1:7000,oncemq+unix:///run/oncemq.sock
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

    It stores everything in one folder, and stops on Ctrl-C or SIGTERM: it answers pending requests, syncs, takes a
    snapshot, and exits with 0. If it is killed in any other way, it recovers at the next start, and loses nothing that
    it has acknowledged. On PostgreSQL, start two brokers: one waits as a standby, and takes over when the other fails.
    The HTTP gateway runs next to the broker, unless `--http none` is given. Each flag is also a setting in oncemq.toml
    and an ONCEMQ_ variable. The further settings of a gateway are listed by `oncemq gateway NAME --help`; its flags are
    also flags of `serve`.
    """
    warn_of_unknown_variables()
    settings = sources.load_serve(given(flags))
    check_ports(settings)
    check_exposure(settings)
    logs.set_up(settings.log_level, settings.log_format)
    for folder in _missing_folders(settings):
        ctx.meta[ADVICE] = {
            "LISTEN_FAILED": f"The folder {folder} does not exist: create it, or choose another address."
        }
    for exposure in exposures(settings):
        warn(exposure.warning)

    from oncemq.server.serve import serve as serve_broker

    ctx.exit(serve_broker(settings, lambda addresses: _announce(addresses, settings), click.echo))


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags with None for those that may be repeated and were not given."""
    return {name: None if value == () else value for name, value in flags.items()}


def _missing_folders(settings: ServeSettings) -> list[Path]:
    """Return folders of Unix sockets that do not exist."""
    paths = [path for path in map(unix_path, settings.listen) if path and not path.startswith("@")]
    folders = [Path(path).parent for path in paths]
    return [folder for folder in folders if not folder.is_dir()]


def _announce(addresses: Sequence[str], settings: ServeSettings) -> None:
    """Print where the broker listens and stores, and the first commands to try."""
    said = f"OnceMQ listens on {' and '.join(addresses)}, and stores in {settings.store}. Ctrl-C stops it."
    if settings.auth_file.exists():
        click.echo(said)
        click.echo("It has users: clients need credentials (`oncemq auth token`, `oncemq context add`).")
        return
    click.echo(f"{said} Try:")
    where = "" if addresses[0] == DEFAULT_URL else f" --url {addresses[0]}"
    for command in ("sub orders kitchen", 'put orders "one pizza"', "get orders kitchen"):
        click.echo(f"  oncemq {command}{where}")

"""Options that say where auth.toml is. They have the same defaults as those of `oncemq serve`."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.server.serve import flag
from oncemq.cli.support.options import Function, config_option, warn_of_unknown_variables
from oncemq.config import sources
from oncemq.config.settings import ServeSettings
from oncemq.protocol.errors import SettingInvalid

if TYPE_CHECKING:
    from oncemq.auth.users import User

#: The error says everything, and the page about settings nothing more.
ADVICE = {"SETTING_INVALID": ""}
_FIELDS = ("data", "auth")


def locates_users(*fields: str) -> Callable[[Function], Function]:
    """Return a decorator that adds --data, --auth, --config and the flags of further settings, and passes the settings
    of the broker on as `settings`."""
    found = [setting for setting in sources.SERVE_SETTINGS if setting.field in (*_FIELDS, *fields)]

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def with_settings(*args: Any, **options: Any) -> None:
            warn_of_unknown_variables()
            flags = {name: options.pop(name) for name in [setting.field for setting in found] + ["config"]}
            function(*args, settings=sources.load_serve(flags), **options)

        for option in (config_option, *(flag(setting) for setting in reversed(found))):
            with_settings = option(with_settings)
        return with_settings

    return decorate


reload_option = click.option(
    "--no-reload", is_flag=True, help="Do not tell a broker that runs on the data folder to read the file again."
)


def reload_command(settings: ServeSettings) -> str:
    """Return the command that tells the broker to read its files again."""
    return "oncemq auth reload" + ("" if settings.is_on_database else f" --data {shlex.quote(settings.folder)}")


def find_user(name: str, settings: ServeSettings) -> User:
    """Return a user of auth.toml. Raises SettingInvalid."""
    from oncemq.auth.file import load

    known = load(settings.auth_file).by_name
    if name not in known:
        raise SettingInvalid(f"there is no user '{name}'; the users are: {', '.join(known) or 'none'}")
    return known[name]

"""Where a client finds its broker and what it shows to it: an address with credentials, chosen from several sources.

    arguments     of `connect`, or flags of a command
    environment   ONCEMQ_URL, ONCEMQ_CONTEXT, ONCEMQ_TOKEN, …
    files         a pipeline's file, then oncemq.toml
    the current context of the contexts file (contexts.py), else DEFAULT_URL

The first of these that has a `url` or names a `context` decides about the address. Credentials of arguments and of the
environment are used for any address. Those of a context or a file are used only if the address comes from there too: a
token is never sent to a host that it was not configured for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from oncemq.config.addresses import DEFAULT_URL
from oncemq.protocol.errors import SettingInvalid

#: Credentials that belong together: all of them come from the first source that has one of them.
_GROUPS = (
    ("token", "token_file"),
    ("tls",),
    ("tls_certificate", "tls_key"),
    ("tls_server_name",),
    ("curve_server",),
    ("curve_public", "curve_secret"),
)
CREDENTIALS = tuple(name for group in _GROUPS for name in group)
#: They are never displayed, and never leave this machine except to their broker.
SECRETS = ("token", "curve_secret")
_SWITCHES = {"true": True, "false": False}
_CURVE_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_CURVE_KEYS = ("curve_server", "curve_public", "curve_secret")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's address, and the credentials for it. Empty texts: there are none."""

    url: str
    token: str = ""
    token_file: str = ""
    #: Whether the connection is encrypted, or the file with the authorities to check the broker's certificate against.
    #: None = no source says it.
    tls: bool | str | None = None
    tls_certificate: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    curve_server: str = ""
    curve_public: str = ""
    curve_secret: str = ""
    #: The name of the context that the address comes from; "" = from none.
    context: str = ""

    def __repr__(self) -> str:
        """Without secrets: it may be logged."""
        has = [name for name in CREDENTIALS if getattr(self, name) not in ("", None)]
        return f"Endpoint({self.url!r}, {', '.join(has) or 'no credentials'})"

    def __reduce__(self) -> Any:
        raise TypeError("an endpoint may have secrets, so it is not pickled: pass the name of a context instead")


class Source(NamedTuple):
    """Values of one source by name. A value that is None is not given."""

    #: What precedes the names of its values in errors, such as "oncemq.toml: client.".
    prefix: str
    values: Mapping[str, Any]
    #: Whether its credentials are used for any address, and not only for its own one.
    is_for_any_url: bool = False

    def has(self, *names: str) -> bool:
        return any(self.values.get(name) is not None for name in names)

    @property
    def is_environment(self) -> bool:
        return self.prefix == _VARIABLE

    def shown(self, name: str) -> str:
        return variable(name) if self.is_environment else f"{self.prefix}{name}"


_VARIABLE = "ONCEMQ_"


def variable(name: str) -> str:
    """
    >>> variable("token_file")
    'ONCEMQ_TOKEN_FILE'
    """
    return _VARIABLE + name.upper()


def arguments(values: Mapping[str, Any]) -> Source:
    """The strongest source. An empty text means: none, and none from other sources."""
    return Source("", values, is_for_any_url=True)


def environment(variables: Mapping[str, str] = os.environ) -> Source:
    """A variable that is empty counts as not set."""
    values = {name: variables.get(variable(name)) or None for name in ("url", "context", *CREDENTIALS)}
    return Source(_VARIABLE, values, is_for_any_url=True)


def file(prefix: str, values: Mapping[str, Any]) -> Source:
    """A file. An empty text counts as not given."""
    return Source(prefix, {name: None if value == "" else value for name, value in values.items()})


class Choice(NamedTuple):
    endpoint: Endpoint
    #: The sources of the credentials by name. Those of a context are not in it.
    sources: Mapping[str, Source]


def choose(sources: Sequence[Source], variables: Mapping[str, str] = os.environ) -> Choice:
    """Choose from sources, of which the first is the strongest. `variables` say where the contexts file is. Raises
    SettingInvalid."""
    for source in sources:
        _check(source)
    home = next((source for source in sources if source.has("url", "context")), None)
    name = _context_name(home, variables)
    if name:
        from oncemq.config import contexts

        context = file(f"context {name}: ", contexts.find(name, variables))
        _check(context)
    else:
        context = Source("", {"url": DEFAULT_URL if home is None else home.values["url"]})
    usable = [each for each in sources if each.is_for_any_url or each is home or (home is None and not name)]
    values, origins = _credentials([*usable, context])
    endpoint = Endpoint(url=context.values["url"], context=name, **values)
    return Choice(endpoint, {each: origin for each, origin in origins.items() if origin is not context})


def _context_name(home: Source | None, variables: Mapping[str, str]) -> str:
    """The context that the address comes from; "" if it comes from none."""
    if home is None:
        # Imported on use: clients that are given an address need no file.
        from oncemq.config import contexts

        return contexts.current(variables)
    name: str = home.values.get("context") or ""
    return name


def _check(source: Source) -> None:
    """Raise SettingInvalid for values that exclude each other. Errors do not show values, which may be secrets."""
    if source.has("url") and source.has("context"):
        both = f"{source.shown('url')} and {source.shown('context')}"
        raise SettingInvalid(f"{both} are both given, and a context has an address of its own: leave one of them out")
    if source.values.get("context") == "":
        raise SettingInvalid(f"{source.shown('context')} is empty; leave it out, or name a context")
    if source.values.get("token") and source.values.get("token_file"):
        both = f"{source.shown('token')} and {source.shown('token_file')}"
        raise SettingInvalid(f"{both} are both given: leave one of them out")
    if source.values.get("tls_key") and not source.values.get("tls_certificate"):
        both = f"{source.shown('tls_key')} is given without {source.shown('tls_certificate')}"
        raise SettingInvalid(f"{both}: the key belongs to a certificate")
    for name in _CURVE_KEYS:
        key = source.values.get(name)
        if key and _CURVE_KEY.fullmatch(key) is None:
            raise SettingInvalid(f"{source.shown(name)} is not a CURVE key: it has 40 characters")


def _credentials(sources: Sequence[Source]) -> tuple[dict[str, Any], dict[str, Source]]:
    """The values of the credentials, and where they come from."""
    values: dict[str, Any] = {}
    origins: dict[str, Source] = {}
    for group in _GROUPS:
        for source in sources:
            if source.has(*group):
                found = {name: source.values[name] for name in group if source.values.get(name) is not None}
                values |= found
                origins |= dict.fromkeys(found, source)
                break
    if "tls" in values:
        values["tls"] = parse_tls(values["tls"])
    return values, origins


def parse_tls(value: bool | str) -> bool | str | None:
    """
    >>> parse_tls("true"), parse_tls("ca.pem")
    (True, 'ca.pem')
    """
    return value if isinstance(value, bool) else _SWITCHES.get(value.lower(), value or None)

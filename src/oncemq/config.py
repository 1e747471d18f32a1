"""Settings: flag over environment over file over default.

    [serve]   the broker: where it listens and stores          ServeSettings
    [limits]  its bounds (limits.py)                           ServeSettings, which is a Limits
    [log]     level and format of its log                      ServeSettings.log_level, .log_format
    [client]  how commands reach a broker                      ClientSettings

The file is `oncemq.toml` in the current folder, or the one that `--config` or ONCEMQ_CONFIG names. Every
setting `key` has the environment variable `ONCEMQ_KEY`. A setting's name carries its unit; sizes may be
written as "64MiB", times as "7d". docs/reference/settings.md is generated from here (cli/reference.py).

This file knows what settings mean, not who uses them: it opens no socket and no journal.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from oncemq.errors import SettingInvalid
from oncemq.limits import Limits

FILE_NAME = "oncemq.toml"
FILE_VARIABLE = "ONCEMQ_CONFIG"
#: With it, the command line shows where an unexpected error came from.
TRACEBACK_VARIABLE = "ONCEMQ_TRACEBACK"
DEFAULT_URL = "tcp://127.0.0.1:5555"
#: Of the HTTP gateway, where nothing else is said.
#: Where each gateway listens, unless it is told otherwise. Push takes three ports in a row.
GATEWAY_ADDRESSES = {
    "http": "127.0.0.1:8002",
    "text": "127.0.0.1:5556",
    "push": "127.0.0.1:5557",
    "udp": "127.0.0.1:5560",
}

#: Of the client's settings, those that every command takes as a flag.
CLIENT_FLAGS = ("url", "timeout_s", "tries")

#: A segment holds its own header and a group's beside the largest batch.
_SEGMENT_OVERHEAD_BYTES = 64 * 1024
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")
_TCP = re.compile(r"tcp://(?P<host>\[[^\]]*\]|[^:/\[\]]+):(?P<port>\d{1,5}|\*)")
_HOST_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:/\[\]]+):(?P<port>\d{1,5})")
_HARMLESS = re.compile(r"[\w./~-]+:?")
_POSTGRES = ("postgresql://", "postgres://")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_BYTES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_MILLISECONDS = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class ServeSettings(Limits, frozen=True, kw_only=True):
    """What `oncemq serve` needs to know. It is a Limits, so that it can be handed on as one."""

    listen: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="Addresses for clients: `tcp://HOST:PORT` or `ipc://PATH`, one or several."),
    ] = (DEFAULT_URL,)
    data: Annotated[str, Meta(min_length=1, description="The folder for everything that the broker stores.")] = (
        "./oncemq-data"
    )
    journal: Annotated[
        str,
        Meta(
            description="Where the journal lies instead, as a URL: `file:DIR`, or `postgresql://…` for a database, on "
            "which a second broker waits as a standby. Empty: in the data folder."
        ),
    ] = ""
    lease_ms: Annotated[
        int,
        Meta(
            ge=500,
            description="On PostgreSQL: a standby takes over when the active broker has not renewed its lease so long.",
        ),
    ] = 3000
    http: Annotated[
        str,
        Meta(
            description="Where the HTTP gateway listens: `HOST:PORT`; `none` for no gateway; `auto` for "
            "127.0.0.1:8002 if the extra `http` is installed."
        ),
    ] = "auto"
    text: Annotated[
        str,
        Meta(description="Where plain ZeroMQ sockets send text: `HOST:PORT`; `auto` for 127.0.0.1:5556; `none`."),
    ] = "none"
    push: Annotated[
        str,
        Meta(
            description="Where publishers push: `HOST:PORT`; the live feed is at the next port, acknowledgements at "
            "the one after it. `auto` for 127.0.0.1:5557; `none`."
        ),
    ] = "none"
    udp: Annotated[
        str, Meta(description="Where datagrams are taken: `HOST:PORT`; `auto` for 127.0.0.1:5560; `none`.")
    ] = "none"
    http_body_bytes_max: Annotated[int, Meta(ge=1024, description="Body of an HTTP request, at the most.")] = 8 * 2**20
    http_connections_max: Annotated[
        int, Meta(ge=1, description="HTTP connections at the same time; more are answered with 503.")
    ] = 1000
    http_origins: Annotated[
        tuple[str, ...],
        Meta(description="Origins whose web pages may use the HTTP gateway (CORS), such as `https://shop.example`."),
    ] = ()
    http_hosts: Annotated[
        tuple[str, ...],
        Meta(description="Further host names under which the HTTP gateway may be called, beside loopback's."),
    ] = ()
    insecure: Annotated[
        bool,
        Meta(description="Allow addresses other than loopback, although nobody is asked for a password."),
    ] = False
    segment_bytes: Annotated[
        int, Meta(ge=2**20, multiple_of=4096, description="Size of the journal's files. Fixed with the first start.")
    ] = 64 * 2**20
    snapshot_bytes: Annotated[
        int, Meta(ge=2**20, description="Take a snapshot after so much journal: a restart replays no more.")
    ] = 256 * 2**20
    snapshot_events: Annotated[int, Meta(ge=1, description="Take a snapshot after so many events.")] = 200_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least important lines that are logged.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="`text` for people (coloured on a terminal), `json` for machines."),
    ] = "text"

    @property
    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})

    @property
    def folder(self) -> str:
        """Where the file journal lies."""
        return self.journal.removeprefix("file:") or self.data

    @property
    def is_on_database(self) -> bool:
        """Others may serve the same journal."""
        return self.journal.startswith(_POSTGRES)

    @property
    def store(self) -> str:
        """For people: where everything is stored."""
        if not self.is_on_database:
            return self.folder
        try:
            from oncemq.journal.postgres_connection import describe
        except ImportError:
            # Nothing of it: only the database's own library knows where in it a password is.
            return "postgresql://…"
        return describe(self.journal)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How commands reach a broker."""

    url: Annotated[
        str,
        Meta(min_length=1, description="The broker's address. Several, with commas between them, are tried in turn."),
    ] = DEFAULT_URL
    timeout_s: Annotated[float, Meta(gt=0, description="Wait so long for an answer before asking again.")] = 1.0
    tries: Annotated[int, Meta(ge=1, description="Ask so many times before giving up.")] = 5
    window: Annotated[int, Meta(ge=1, le=1024, description="Commands in flight at the most.")] = 64
    batch_messages: Annotated[int, Meta(ge=1, description="Messages that one batch collects at the most.")] = 1000
    batch_bytes: Annotated[int, Meta(ge=1, description="Bytes that one batch collects at the most.")] = 256 * 2**10
    linger_ms: Annotated[int, Meta(ge=0, description="A batch waits so long for more messages before it is sent.")] = 5
    state: Annotated[
        str,
        Meta(
            description="Where `put`, `get`, `sub` and `unsub` keep what they are about to do, so that the next run "
            "finishes it if one is cut off: a folder; `user` for one in the user's state folder; `none`."
        ),
    ] = "user"
    record: Annotated[
        str,
        Meta(
            description="A folder: clients write down there what they put and consume, for `oncemq pipeline audit`. "
            "Empty: they don't."
        ),
    ] = ""


_LIMIT_DESCRIPTIONS = {
    "batch_bytes_max": "One batch, as it travels.",
    "get_bytes_max": "What one `get` or `read` returns at the most, beyond its first batch.",
    "group_bytes_max": "Payload that one sync covers at the most, beyond its first batch.",
    "topics_max": "Topics.",
    "subscriptions_max": "Subscriptions of all topics together.",
    "sessions_max": "Sessions, named and anonymous.",
    "session_idle_ms": "An anonymous session goes this long after its last command.",
    "keys_max": "Idempotency keys that are remembered. At the limit new ones are refused; none is forgotten early.",
    "key_ms": "An idempotency key is remembered this long.",
    "registry_entries_max": "Entries that gateways keep in the broker.",
    "stages_max": "Stages that are not yet committed.",
    "stage_ms": "A stage that is not committed goes after this time.",
    "writers_max": "Writers of stages whose last batch is remembered.",
    "patterns_max": "Subscriptions by pattern.",
    "delayed_max": "Batches that are not due yet, on all topics.",
    "members_max": "Consumers of one shared subscription.",
    "leased_max": "Messages that the consumers of one shared subscription may have out together.",
}


class Setting(msgspec.Struct, frozen=True):
    """One setting, as the file, the environment, the flags and the reference page know it."""

    section: str
    key: str
    #: In ServeSettings or ClientSettings.
    field: str
    kind: Any
    default: Any
    description: str

    @property
    def variable(self) -> str:
        return f"ONCEMQ_{self.field.upper()}"

    @property
    def flag(self) -> str:
        """Empty where the command line has none."""
        if self.section == "client" and self.field not in CLIENT_FLAGS:
            return ""
        return "--" + self.field.removesuffix("_s").replace("_", "-")

    @property
    def unit(self) -> str:
        name = self.field.removesuffix("_max")
        for suffix, unit in (("_bytes", "bytes"), ("_ms", "milliseconds"), ("_s", "seconds")):
            if name.endswith(suffix):
                return unit
        return ""

    @property
    def allowed(self) -> str:
        """What may stand there, for people."""
        plain, meta = _parts(self.kind)
        if typing.get_origin(plain) is Literal:
            return " or ".join(typing.get_args(plain))
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        text = names.get(plain, "a list of texts")
        if self.unit in ("bytes", "milliseconds"):
            text += f" of {self.unit}, or one with a unit " + ('("64MiB")' if self.unit == "bytes" else '("7d")')
        return text + _bounds(meta)


def plain_kind(setting: Setting) -> Any:
    """The setting's type, without its bounds."""
    return _parts(setting.kind)[0]


def _parts(kind: Any) -> tuple[Any, Meta | None]:
    if typing.get_origin(kind) is Annotated:
        plain, meta = typing.get_args(kind)[:2]
        return plain, meta
    return kind, None


def _bounds(meta: Meta | None) -> str:
    if meta is None:
        return ""
    said = [
        f"{word} {bound}"
        for word, bound in (
            ("at least", meta.ge),
            ("more than", meta.gt),
            ("at most", meta.le),
            ("a multiple of", meta.multiple_of),
        )
        if bound is not None
    ]
    if meta.min_length:
        said.append("not empty")
    return "".join(f", {bound}" for bound in said)


def _section(field: str, home: str) -> tuple[str, str]:
    if field in Limits.__struct_fields__:
        return "limits", field
    if field.startswith("log_"):
        return "log", field.removeprefix("log_")
    return home, field


def _settings_of(struct: type[msgspec.Struct], home: str) -> list[Setting]:
    hints = typing.get_type_hints(struct, include_extras=True)
    found = []
    for field in msgspec.structs.fields(struct):
        kind = hints[field.name]
        meta = _parts(kind)[1]
        if meta is None:
            kind = Annotated[kind, Meta(ge=1)]
        description = (meta and meta.description) or _LIMIT_DESCRIPTIONS.get(field.name, "")
        found.append(Setting(*_section(field.name, home), field.name, kind, field.default, description))
    return sorted(found, key=lambda setting: ("serve", "limits", "log", "client").index(setting.section))


SERVE_SETTINGS = _settings_of(ServeSettings, "serve")
CLIENT_SETTINGS = _settings_of(ClientSettings, "client")
SETTINGS = [*SERVE_SETTINGS, *CLIENT_SETTINGS]
_BY_FIELD = {setting.field: setting for setting in SETTINGS}
_BY_PLACE = {(setting.section, setting.key): setting for setting in SETTINGS}


def load_serve(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ServeSettings:
    """The broker's settings. `flags` maps fields to values, None where a flag was not given, and may hold
    `config`, the file. Raises SettingInvalid."""
    settings = ServeSettings(**_gather(SERVE_SETTINGS, flags, environment))
    for address in settings.listen:
        check_address(address, settings.insecure)
    _check_journal(settings.journal)
    for gateway in GATEWAY_ADDRESSES:
        _check_gateway(gateway, getattr(settings, gateway), settings.insecure)
    if settings.batch_bytes_max + _SEGMENT_OVERHEAD_BYTES > settings.segment_bytes:
        raise SettingInvalid(
            f"A batch of limits.batch_bytes_max = {settings.batch_bytes_max} bytes does not fit into a segment of "
            f"serve.segment_bytes = {settings.segment_bytes} bytes."
        )
    return settings


def load_client(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ClientSettings:
    """How to reach the broker. As `load_serve`."""
    settings = ClientSettings(**_gather(CLIENT_SETTINGS, flags, environment))
    if not settings.url.isascii() and any("\ud800" <= letter <= "\udfff" for letter in settings.url):
        raise SettingInvalid(f"url = {settings.url!r} is not UTF-8.")
    return settings


def _gather(settings: list[Setting], flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values that are given, each by its strongest source. The whole file is checked, used or not."""
    given: dict[str, Any] = {}
    for field, (value, source) in read_file(flags.get("config") or environment.get(FILE_VARIABLE)).items():
        given[field] = convert(_BY_FIELD[field], value, source, typed=True)
    chosen = {setting.field: given[setting.field] for setting in settings if setting.field in given}
    for setting in settings:
        if setting.variable in environment:
            chosen[setting.field] = convert(setting, environment[setting.variable], setting.variable)
        if flags.get(setting.field) is not None:
            chosen[setting.field] = convert(setting, flags[setting.field], setting.flag)
    return chosen


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Variables that look like settings and are none, each with the nearest that is one, or with nothing."""
    known = [setting.variable for setting in SETTINGS] + [FILE_VARIABLE, TRACEBACK_VARIABLE]
    unknown = sorted(name for name in environment if name.startswith("ONCEMQ_") and name not in known)
    return [(name, next(iter(difflib.get_close_matches(name, known, n=1)), "")) for name in unknown]


def read_file(path: str | None) -> dict[str, tuple[Any, str]]:
    """Field → (value, where it stands). Without a path, the file in the current folder, if there is one."""
    file = Path(path or FILE_NAME)
    if not path and not file.exists():
        return {}
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingInvalid(f"{file} can't be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{file} is not TOML: {error}.") from None
    return _flatten(document, str(file))


def _flatten(document: dict[str, Any], file: str) -> dict[str, tuple[Any, str]]:
    found = {}
    sections = sorted({setting.section for setting in SETTINGS})
    for section, entries in document.items():
        if section not in sections or not isinstance(entries, dict):
            raise SettingInvalid(f"{file}: [{section}] is not a section; sections are {', '.join(sections)}.")
        for key, value in entries.items():
            setting = _BY_PLACE.get((section, key))
            if setting is None:
                raise SettingInvalid(f"{file}: {section}.{key} is not a setting{_suggestion(section, key)}.")
            found[setting.field] = (value, f"{file}: {section}.{key}")
    return found


def _suggestion(section: str, key: str) -> str:
    keys = [known for place, known in _BY_PLACE if place == section]
    close = difflib.get_close_matches(key, keys, n=1)
    return f"; {close[0]} is" if close else f"; [{section}] has {', '.join(keys)}"


def convert(setting: Setting, value: Any, source: str, typed: bool = False) -> Any:
    """A value of the setting's type. Unless it comes from where values have types, text is read as that type."""
    plain = plain_kind(setting)
    if plain == tuple[str, ...] and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if plain is int and isinstance(value, str):
        value = quantity(value, setting.unit)
    try:
        return msgspec.convert(value, setting.kind, strict=typed)
    except msgspec.ValidationError:
        raise SettingInvalid(f"{source} = {value!r} is not possible: {setting.allowed}.") from None


def quantity_text(number: int, unit: str) -> str:
    """A number as people write it: the largest unit that divides it.

    >>> quantity_text(67108864, "bytes")
    '64MiB'
    """
    factors = {"bytes": {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}, "milliseconds": {"d": 86_400_000, "h": 3_600_000}}
    for suffix, factor in factors.get(unit, {}).items():
        if number and number % factor == 0:
            return f"{number // factor}{suffix}"
    return str(number)


def quantity(text: str, unit: str) -> int | str:
    """Bytes or milliseconds out of "64MiB" or "7d"; the text itself where it is no such thing."""
    factors = {"bytes": _BYTES, "milliseconds": _MILLISECONDS}.get(unit, {"": 1})
    match = _QUANTITY.fullmatch(text.replace("_", ""))
    if match is None or match[2].lower() not in factors:
        return text
    factor = factors[match[2].lower()]
    return round(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def check_address(address: str, insecure: bool) -> None:
    """Raises SettingInvalid unless a broker may listen there."""
    if address.startswith("ipc://") and len(address) > len("ipc://"):
        return
    match = _TCP.fullmatch(address)
    if match is None or (match["port"] != "*" and int(match["port"]) > 65_535):
        raise SettingInvalid(f"listen: {address!r} is not an address; tcp://127.0.0.1:5555 or ipc:///tmp/oncemq are.")
    if not insecure and not _LOOPBACK.fullmatch(match["host"]):
        raise SettingInvalid(
            f"listen: {address} can be reached from other machines, and the broker asks nobody for a password. "
            "Use tcp://127.0.0.1:PORT, or say `insecure` if the network is trusted."
        )


def open_addresses(settings: ServeSettings) -> list[str]:
    """Addresses that other machines can reach."""
    matches = [(address, _TCP.fullmatch(address)) for address in settings.listen]
    found = [address for address, match in matches if match and not _LOOPBACK.fullmatch(match["host"])]
    return found + [f"{name} at {at}" for name in GATEWAY_ADDRESSES if is_open(at := getattr(settings, name))]


def is_open(address: str) -> bool:
    """Other machines can reach it."""
    match = _HOST_PORT.fullmatch(address)
    return match is not None and not _LOOPBACK.fullmatch(match["host"])


def _check_journal(url: str) -> None:
    if url.startswith(_POSTGRES) or (url.startswith("file:") and len(url) > len("file:")) or not url:
        return
    # There may be a password in it.
    shown = url if _HARMLESS.fullmatch(url) else "…"
    raise SettingInvalid(f"journal: {shown!r} is not a journal's URL; file:DIR and postgresql://HOST/DATABASE are.")


def _check_gateway(name: str, address: str, insecure: bool) -> None:
    """Raises SettingInvalid unless the gateway may listen there."""
    if address in ("auto", "none"):
        return
    match = _HOST_PORT.fullmatch(address)
    # Push needs three ports in a row.
    if match is None or not 1 <= int(match["port"]) <= 65_533:
        usual = GATEWAY_ADDRESSES[name]
        raise SettingInvalid(f"{name}: {address!r} is not an address; {usual} is, and so are `auto` and `none`.")
    if not insecure and is_open(address):
        raise SettingInvalid(
            f"{name}: {address} can be reached from other machines, and the gateway asks nobody for a password. "
            "Use 127.0.0.1:PORT, or say `insecure` if the network is trusted."
        )


def gateway_address(name: str, address: str) -> str:
    """Where a gateway listens; empty: there is to be none."""
    return {"auto": GATEWAY_ADDRESSES[name], "none": ""}.get(address, address)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address that was checked."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)

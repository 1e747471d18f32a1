"""Where the values of settings come from: a flag wins over the environment, then the file, then the default. Which
address and which credentials a client uses, endpoints.py decides.

    [serve]   the broker: where it listens and stores          ServeSettings
    [limits]  its limits (protocol/limits.py)                  ServeSettings, which is a Limits
    [http] [text] [push] [udp]  its gateways                   ServeSettings.http_options and so on
    [log]     level and format of its log                      ServeSettings.log_level, .log_format
    [client]  how clients reach a broker                       ClientSettings

The file is `oncemq.toml` in the current folder, or the one that `--config` or ONCEMQ_CONFIG names. A setting `key` has
the environment variable `ONCEMQ_KEY`, that of a gateway `ONCEMQ_PUSH_KEY`. The name of a setting ends with its unit;
sizes may be written as "64MiB" and durations as "7d". docs/reference/settings.md is generated from here
(cli/tools/reference.py).

settings.py, gateways.py and protocol/limits.py define the settings.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from oncemq.config import contexts, endpoints
from oncemq.config.addresses import GATEWAY_ADDRESSES, check_address, check_gateway, split_addresses
from oncemq.config.durations import format_duration, parse_duration_ms
from oncemq.config.gateways import OPTIONS, Options
from oncemq.config.settings import LIMIT_DESCRIPTIONS, ClientSettings, ServeSettings, is_database
from oncemq.protocol.errors import SettingInvalid
from oncemq.protocol.limits import Limits

FILE_NAME = "oncemq.toml"
FILE_VARIABLE = "ONCEMQ_CONFIG"
#: If it is set, the command line shows the traceback of an unexpected error.
TRACEBACK_VARIABLE = "ONCEMQ_TRACEBACK"
#: The settings of the client that every command has as a flag.
CLIENT_FLAGS = ("url", "context", "token_file", "tls", "timeout_s", "tries")

#: A segment holds its own header and that of a group in addition to the largest batch.
_SEGMENT_OVERHEAD_BYTES = 64 * 1024
_HARMLESS = re.compile(r"[\w./~-]+:?")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_BYTES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


class Setting(msgspec.Struct, frozen=True):
    """A setting, as the file, the environment, the flags and the reference page name it."""

    section: str
    key: str
    #: Its name in ServeSettings or ClientSettings.
    field: str
    kind: Any
    default: Any
    description: str

    @property
    def variable(self) -> str:
        return f"ONCEMQ_{self.field.upper()}"

    @property
    def flag(self) -> str:
        """Its flag; empty if the command line has none."""
        if self.section == "client" and self.field not in CLIENT_FLAGS:
            return ""
        name = self.field.removesuffix("_s") if self.unit == "seconds" else self.field
        return "--" + name.replace("_", "-")

    @property
    def unit(self) -> str:
        name = self.field.removesuffix("_max")
        if name.endswith("_per_s"):
            return ""
        for suffix, unit in (("_bytes", "bytes"), ("_ms", "milliseconds"), ("_s", "seconds")):
            if name.endswith(suffix):
                return unit
        return ""

    @property
    def allowed(self) -> str:
        """The values that are allowed, for people."""
        plain, meta = _parts(self.kind)
        if typing.get_origin(plain) is Literal:
            return " or ".join(typing.get_args(plain))
        if plain == bool | str:
            return "true, false or a file"
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        text = names.get(plain, "a list of texts, or one text with commas")
        if self.unit:
            text += f" of {self.unit}, or one with a unit " + ('("64MiB")' if self.unit == "bytes" else '("7d")')
        return text + _bounds(meta)


def plain_kind(setting: Setting) -> Any:
    """Return the type of a setting, without its bounds."""
    return _parts(setting.kind)[0]


def _parts(kind: Any) -> tuple[Any, Meta | None]:
    if typing.get_origin(kind) is Annotated:
        plain, meta = typing.get_args(kind)[:2]
        return plain, meta
    return kind, None


def _bounds(meta: Meta | None) -> str:
    if meta is None:
        return ""
    bounds = [
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
        bounds.append("not empty")
    if meta.max_length:
        bounds.append(f"at most {meta.max_length} characters")
    if meta.examples:
        bounds.append(f"such as {meta.examples[0]}")
    return "".join(f", {bound}" for bound in bounds)


def _section(field: str, home: str) -> tuple[str, str]:
    if field in Limits.__struct_fields__:
        return "limits", field
    if field.startswith("log_"):
        return "log", field.removeprefix("log_")
    return home, field


def _settings_of(struct: type[msgspec.Struct], home: str) -> list[Setting]:
    found = []
    for key, kind, default in _fields(struct):
        meta = _parts(kind)[1]
        if meta is None:
            kind = Annotated[kind, Meta(ge=1)]
        description = (meta and meta.description) or LIMIT_DESCRIPTIONS.get(key, "")
        found.append(Setting(*_section(key, home), key, kind, default, description))
    return sorted(found, key=lambda setting: ("serve", "limits", "log", "client").index(setting.section))


def _options_of(gateway: str) -> list[Setting]:
    return [
        Setting(gateway, key, f"{gateway}_{key}", kind, default, kind.__metadata__[0].description)
        for key, kind, default in _fields(OPTIONS[gateway])
    ]


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of the fields, except those that group other settings."""
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        if not field.name.endswith("_options"):
            yield field.name, hints[field.name], field.default


SERVE_SETTINGS = _settings_of(ServeSettings, "serve")
CLIENT_SETTINGS = _settings_of(ClientSettings, "client")
GATEWAY_SETTINGS = {gateway: _options_of(gateway) for gateway in OPTIONS}
SETTINGS = [*SERVE_SETTINGS, *itertools.chain.from_iterable(GATEWAY_SETTINGS.values()), *CLIENT_SETTINGS]
_BY_FIELD = {setting.field: setting for setting in SETTINGS}
_BY_SECTION_KEY = {(setting.section, setting.key): setting for setting in SETTINGS}


def load_serve(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ServeSettings:
    """Return the settings of the broker. `flags` maps fields to values (None: the flag was not given), and `config` to
    the path of the file. Raise SettingInvalid."""
    options: dict[str, Any] = {f"{name}_options": _load_options(name, flags, environment) for name in GATEWAY_SETTINGS}
    settings = ServeSettings(**_gather(SERVE_SETTINGS, flags, environment), **options)
    for address in settings.listen:
        check_address(address)
    _check_journal(settings.journal)
    for address in settings.push_options.feed_listen:
        check_address(address, "push.feed_listen")
    for gateway in GATEWAY_ADDRESSES:
        check_gateway(gateway, getattr(settings, gateway))
    if settings.batch_bytes_max + _SEGMENT_OVERHEAD_BYTES > settings.segment_bytes:
        raise SettingInvalid(
            f"A batch of limits.batch_bytes_max = {settings.batch_bytes_max} bytes does not fit into a segment of "
            f"serve.segment_bytes = {settings.segment_bytes} bytes. Increase the one or decrease the other."
        )
    return settings


def from_environment(field: str, environment: Mapping[str, str] = os.environ) -> Any:
    """Return one setting from its variable, or its default. Raise SettingInvalid."""
    setting = _BY_FIELD[field]
    if setting.variable not in environment:
        return setting.default
    return convert(setting, environment[setting.variable], setting.variable)


def _load_options(gateway: str, flags: Mapping[str, Any], environment: Mapping[str, str]) -> Options:
    settings = GATEWAY_SETTINGS[gateway]
    chosen = _gather(settings, flags, environment)
    return OPTIONS[gateway](**{each.key: chosen[each.field] for each in settings if each.field in chosen})


def load_client(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ClientSettings:
    """Return the settings of a client, with the address and the credentials that it is to use. Arguments and errors are
    those of `load_serve`."""
    chosen = choose_endpoint(flags, environment).endpoint
    values = _gather(CLIENT_SETTINGS, flags, environment) | msgspec.structs.asdict(chosen)
    values["tls"] = "" if chosen.tls is None else chosen.tls
    settings = ClientSettings(**values)
    if not settings.url.isascii() and any("\ud800" <= character <= "\udfff" for character in settings.url):
        raise SettingInvalid(f"url = {settings.url!r} is not UTF-8.")
    return settings


def choose_endpoint(
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    above_file: Sequence[endpoints.Source] = (),
) -> endpoints.Choice:
    """Choose the address and the credentials of a client. `above_file`: further sources, which are stronger than the
    settings file and weaker than the environment. Raises SettingInvalid."""
    path = flags.get("config") or environment.get(FILE_VARIABLE)
    names = ("url", "context", *endpoints.CREDENTIALS)
    in_file = {name: value for name, value in _in_file(path).items() if name in names}
    sources = [
        endpoints.arguments({name: flags.get(name) for name in names}),
        endpoints.environment(environment),
        *above_file,
        endpoints.file(f"{path or FILE_NAME}: client.", in_file),
    ]
    return endpoints.choose(sources, environment)


def _in_file(path: str | None) -> dict[str, Any]:
    """Return the values in the file by field. The whole file is checked, used or not."""
    return {
        field: convert(_BY_FIELD[field], value, source, typed=True)
        for field, (value, source) in read_file(path).items()
    }


def _gather(settings: list[Setting], flags: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that are set, each from its strongest source."""
    in_file = _in_file(flags.get("config") or environment.get(FILE_VARIABLE))
    chosen = {setting.field: in_file[setting.field] for setting in settings if setting.field in in_file}
    for setting in settings:
        if setting.variable in environment:
            chosen[setting.field] = convert(setting, environment[setting.variable], setting.variable)
        if flags.get(setting.field) is not None:
            chosen[setting.field] = convert(setting, flags[setting.field], setting.flag)
    return chosen


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Return variables that look like settings but are none, each with the most similar setting, or ""."""
    known = [setting.variable for setting in SETTINGS]
    known += [FILE_VARIABLE, contexts.FILE_VARIABLE, TRACEBACK_VARIABLE]
    unknown = sorted(name for name in environment if name.startswith("ONCEMQ_") and name not in known)
    return [(name, next(iter(difflib.get_close_matches(name, known, n=1)), "")) for name in unknown]


def read_file(path: str | None) -> dict[str, tuple[Any, str]]:
    """Return values and their locations by field. Without a path, the file in the current folder is read if it
    exists."""
    file = Path(path or FILE_NAME)
    if not path and not file.exists():
        return {}
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            document = tomllib.loads(opened.read().decode("utf-8"))
    except OSError as error:
        raise SettingInvalid(f"{file} can't be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{file} is not valid TOML: {error}.") from None
    found = _flatten(document, str(file))
    if any(found.get(name, ("",))[0] for name in endpoints.SECRETS):
        contexts.check_private(file, status)
    return found


def _flatten(document: dict[str, Any], file: str) -> dict[str, tuple[Any, str]]:
    found = {}
    sections = sorted({setting.section for setting in SETTINGS})
    for section, entries in document.items():
        if section not in sections or not isinstance(entries, dict):
            raise SettingInvalid(f"{file}: [{section}] is not a section; the sections are {', '.join(sections)}.")
        for key, value in entries.items():
            setting = _BY_SECTION_KEY.get((section, key))
            if setting is None:
                raise SettingInvalid(f"{file}: {section}.{key} is not a setting{_suggestion(section, key)}.")
            found[setting.field] = (value, f"{file}: {section}.{key}")
    return found


def _suggestion(section: str, key: str) -> str:
    keys = [known for home, known in _BY_SECTION_KEY if home == section]
    close = difflib.get_close_matches(key, keys, n=1)
    return f"; the most similar one is {close[0]}" if close else f"; [{section}] has {', '.join(keys)}"


def convert(setting: Setting, value: Any, source: str, typed: bool = False) -> Any:
    """Return the value in the type of the setting. Raise SettingInvalid. Unless the source is `typed` (the file), text
    is converted to that type."""
    plain, parsed = plain_kind(setting), value
    try:
        if plain == tuple[str, ...]:
            texts = [value] if isinstance(value, str) else value
            parsed = split_addresses(msgspec.convert(texts, plain))
        elif plain in (int, float) and isinstance(value, str):
            parsed = parse_quantity(value, setting.unit)
        elif typing.get_origin(plain) is Literal and isinstance(value, bool):
            parsed = str(value).lower()
        return msgspec.convert(parsed, setting.kind, strict=typed)
    except ValueError:  # A ValidationError is one.
        is_secret = setting.field in endpoints.SECRETS or (setting.field == "journal" and not _is_harmless(value))
        shown = "…" if is_secret else repr(value)
        raise SettingInvalid(f"{source} = {shown} is not valid: it must be {setting.allowed}.") from None


def format_quantity(number: int, unit: str) -> str:
    """Return a number in the largest unit that divides it, as `parse_quantity` reads it.

    >>> format_quantity(67108864, "bytes"), format_quantity(604800000, "milliseconds")
    ('64MiB', '7d')
    """
    if unit == "milliseconds":
        return format_duration(number)
    factors = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10} if unit == "bytes" and number else {}
    return next((f"{number // factor}{name}" for name, factor in factors.items() if number % factor == 0), str(number))


def parse_quantity(text: str, unit: str) -> float:
    """Return the number that a text such as "64MiB" (bytes), "7d" (milliseconds, seconds) or "1_000" stands for.
    Raise ValueError for anything else."""
    text = text.replace("_", "")
    if unit == "milliseconds":
        return parse_duration_ms(text, bare_unit="ms")
    if unit == "seconds":
        return parse_duration_ms(text) / 1000
    match = _QUANTITY.fullmatch(text)
    factors = _BYTES if unit == "bytes" else {"": 1}
    if match is None or match[2].lower() not in factors:
        raise ValueError(
            f"{text!r} is not a number" + (" of bytes, such as 1048576 or 64MiB." if unit == "bytes" else ".")
        )
    factor = factors[match[2].lower()]
    return round(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def _check_journal(url: str) -> None:
    if is_database(url) or (url.startswith("file:") and len(url) > len("file:")) or not url:
        return
    shown = url if _is_harmless(url) else "…"
    text = f"journal: {shown!r} is not the URL of a journal; use file:DIR or postgresql://HOST/DATABASE."
    error = SettingInvalid(text)
    if _is_harmless(url) and ":" not in url:
        error.advice = f"For a folder, use `--data {url}` or `--journal file:{url}`."
    raise error


def _is_harmless(journal: Any) -> bool:
    """Return whether the value of the setting `journal` certainly contains no password."""
    return isinstance(journal, int | float) or (isinstance(journal, str) and bool(_HARMLESS.fullmatch(journal)))

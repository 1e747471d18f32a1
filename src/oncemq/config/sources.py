"""Settings: flag over environment over file over default.

    [serve]   the broker: where it listens and stores          ServeSettings
    [limits]  its bounds (limits.py)                           ServeSettings, which is a Limits
    [http] [text] [push] [udp]  its gateways                   ServeSettings.http_options and so on
    [log]     level and format of its log                      ServeSettings.log_level, .log_format
    [client]  how commands reach a broker                      ClientSettings

The file is `oncemq.toml` in the current folder, or the one that `--config` or ONCEMQ_CONFIG names. Every
setting `key` has the environment variable `ONCEMQ_KEY`, a gateway's is `ONCEMQ_PUSH_KEY`. A setting's name carries
its unit; sizes may be written as "64MiB", times as "7d". docs/reference/settings.md is generated from here
(cli/tools/reference.py).

settings.py, gateways.py and limits.py say which there are; this file, where their values come from.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from oncemq.config.addresses import GATEWAY_ADDRESSES, check_address, check_gateway, is_open, split_addresses
from oncemq.config.durations import format_duration, parse_duration_ms
from oncemq.config.gateways import OPTIONS, Options
from oncemq.config.settings import LIMIT_DESCRIPTIONS, ClientSettings, ServeSettings, is_database
from oncemq.protocol.errors import SettingInvalid
from oncemq.protocol.limits import Limits

FILE_NAME = "oncemq.toml"
FILE_VARIABLE = "ONCEMQ_CONFIG"
#: With it, the command line shows where an unexpected error came from.
TRACEBACK_VARIABLE = "ONCEMQ_TRACEBACK"
#: Of the client's settings, those that every command takes as a flag.
CLIENT_FLAGS = ("url", "timeout_s", "tries")

#: A segment holds its own header and a group's beside the largest batch.
_SEGMENT_OVERHEAD_BYTES = 64 * 1024
_HARMLESS = re.compile(r"[\w./~-]+:?")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_BYTES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


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
        """What may stand there, for people."""
        plain, meta = _parts(self.kind)
        if typing.get_origin(plain) is Literal:
            return " or ".join(typing.get_args(plain))
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        text = names.get(plain, "a list of texts")
        if self.unit:
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
    if meta.max_length:
        said.append(f"at most {meta.max_length} letters")
    return "".join(f", {bound}" for bound in said)


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
    """Name, type and default, but for what are settings of their own."""
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        if not field.name.endswith("_options"):
            yield field.name, hints[field.name], field.default


SERVE_SETTINGS = _settings_of(ServeSettings, "serve")
CLIENT_SETTINGS = _settings_of(ClientSettings, "client")
GATEWAY_SETTINGS = {gateway: _options_of(gateway) for gateway in OPTIONS}
SETTINGS = [*SERVE_SETTINGS, *itertools.chain.from_iterable(GATEWAY_SETTINGS.values()), *CLIENT_SETTINGS]
_BY_FIELD = {setting.field: setting for setting in SETTINGS}
_BY_PLACE = {(setting.section, setting.key): setting for setting in SETTINGS}


def load_serve(flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ServeSettings:
    """The broker's settings. `flags` maps fields to values, None where a flag was not given, and may hold
    `config`, the file. Raises SettingInvalid."""
    options: dict[str, Any] = {f"{name}_options": _load_options(name, flags, environment) for name in GATEWAY_SETTINGS}
    settings = ServeSettings(**_gather(SERVE_SETTINGS, flags, environment), **options)
    for address in settings.listen:
        check_address(address, settings.insecure)
    _check_journal(settings.journal)
    for address in settings.push_options.feed_listen:
        check_address(address, settings.insecure, "push.feed_listen")
    for gateway in GATEWAY_ADDRESSES:
        check_gateway(gateway, getattr(settings, gateway), settings.insecure)
    if settings.batch_bytes_max + _SEGMENT_OVERHEAD_BYTES > settings.segment_bytes:
        raise SettingInvalid(
            f"A batch of limits.batch_bytes_max = {settings.batch_bytes_max} bytes does not fit into a segment of "
            f"serve.segment_bytes = {settings.segment_bytes} bytes."
        )
    return settings


def _load_options(gateway: str, flags: Mapping[str, Any], environment: Mapping[str, str]) -> Options:
    settings = GATEWAY_SETTINGS[gateway]
    chosen = _gather(settings, flags, environment)
    return OPTIONS[gateway](**{each.key: chosen[each.field] for each in settings if each.field in chosen})


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
    plain, parsed = plain_kind(setting), value
    try:
        if plain == tuple[str, ...]:
            texts = [value] if isinstance(value, str) else value
            parsed = split_addresses(msgspec.convert(texts, plain))
        elif plain in (int, float) and isinstance(value, str):
            parsed = parse_quantity(value, setting.unit)
        return msgspec.convert(parsed, setting.kind, strict=typed)
    except ValueError:  # A ValidationError is one.
        raise SettingInvalid(f"{source} = {value!r} is not valid: it must be {setting.allowed}.") from None


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


def open_addresses(settings: ServeSettings) -> list[str]:
    """Addresses that other machines can reach."""
    found = [address for address in (*settings.listen, *settings.push_options.feed_listen) if is_open(address)]
    return found + [f"{name} at {at}" for name in GATEWAY_ADDRESSES if is_open(at := getattr(settings, name))]


def _check_journal(url: str) -> None:
    if is_database(url) or (url.startswith("file:") and len(url) > len("file:")) or not url:
        return
    # There may be a password in it.
    shown = url if _HARMLESS.fullmatch(url) else "…"
    text = f"journal: {shown!r} is not a journal's URL; file:DIR and postgresql://HOST/DATABASE are."
    error = SettingInvalid(text)
    if _HARMLESS.fullmatch(url) and ":" not in url:
        error.advice = f"For a folder: `--data {url}`, or `--journal file:{url}`."
    raise error

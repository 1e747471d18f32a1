"""What commands share: how to reach the broker, `--json`, names that complete, quantities with units, times."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from oncemq.cli.support.output import warn

if TYPE_CHECKING:
    from oncemq import Client

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

Function = Callable[..., None]
#: What was given on how to reach the broker; the rest is found in environment, file and defaults.
Reach = Mapping[str, Any]

_REACH_FIELDS = {"url": "url", "timeout": "timeout_s", "tries": "tries", "config": "config"}
#: Completion must not make anybody wait.
_COMPLETION_TIMEOUT_S = 0.3
#: What `oncemq work` tells the commands that it runs; they may be `oncemq` themselves.
MESSAGE_VARIABLES = tuple(f"ONCEMQ_{name}" for name in ("TOPIC", "OFFSET", "KEY", "TRY", "TIME", "IDEMPOTENCY_KEY"))
HEADER_VARIABLE = "ONCEMQ_HEADER_"


def reaches_broker(function: Function) -> Function:
    """Adds --url, --timeout, --tries and --config, and hands them on as `reach`."""

    @functools.wraps(function)
    def gathered(*args: Any, **options: Any) -> None:
        warn_of_unknown_variables()
        reach = {field: options.pop(name) for name, field in _REACH_FIELDS.items()}
        function(*args, reach=reach, **options)

    for option in (
        config_option,
        click.option(
            "--tries", metavar="N", type=click.IntRange(min=1), help="Ask so many times before giving up. [default: 5]"
        ),
        click.option("--timeout", type=float, metavar="SECONDS", help="Wait so long for an answer. [default: 1]"),
        click.option("--url", metavar="URL", help="The broker's address. [default: tcp://127.0.0.1:5555]"),
    ):
        gathered = option(gathered)
    return gathered


def warn_of_unknown_variables() -> None:
    """A misspelt variable changes nothing; whoever set it should know."""
    from oncemq.config import sources

    for name, close in sources.unknown_variables():
        if name in MESSAGE_VARIABLES or name.startswith(HEADER_VARIABLE):
            continue
        warn(f"{name} is not a setting" + (f"; {close} is." if close else "."))


config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="The settings file. [default: oncemq.toml, if there is one]",
)


def remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        ctx.meta["oncemq.json"] = True
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=remember_json, help="One JSON object per line."
)


@contextmanager
def connected(reach: Reach, *, client_name: str | None = None) -> Iterator[Client]:
    """A client of the broker. Its session is its own, so that any number of runs may go on side by side."""
    import oncemq
    from oncemq.config import sources

    settings = sources.load_client(reach)
    with oncemq.connect(
        settings.url,
        label=client_name or "anonymous",
        timeout_s=settings.timeout_s,
        tries=settings.tries,
        window=settings.window,
        batch_messages=settings.batch_messages,
        batch_bytes=settings.batch_bytes,
        linger_ms=settings.linger_ms,
        record=settings.record,
    ) as client:
        yield client


class Name(ParamType):
    """Of whatever the broker knows by name; the shell completes it if a broker answers quickly."""

    def __init__(self, name: str, known: Callable[[Client, Mapping[str, Any]], list[str]]) -> None:
        self.name = name
        #: Out of a client and what is already on the command line.
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return utf8(value, f"a {self.name}'s name")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        from oncemq.protocol import errors

        reach = {
            "url": ctx.params.get("url"),
            "config": ctx.params.get("config"),
            "timeout_s": _COMPLETION_TIMEOUT_S,
            "tries": 1,
        }
        try:
            with connected(reach) as client:
                names = self._known(client, ctx.params)
        except (errors.OnceMQError, OSError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def utf8(text: str, what: str) -> str:
    """Python keeps an argument's other bytes as lone surrogates: they can't be sent."""
    from oncemq.protocol.errors import NameInvalid

    try:
        text.encode()
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "surrogateescape")
        raise NameInvalid(f"{what} is UTF-8, and {str(raw)[1:]} is not") from None
    return text


def is_pattern(topic: str) -> bool:
    """Whether it stands for several topics."""
    return "*" in topic or "#" in topic


def _subscribers(client: Client, given: Mapping[str, Any]) -> list[str]:
    topic = given.get("topic")
    if not topic:
        return []
    if is_pattern(topic):
        return [entry.subscriber for entry in client.patterns() if entry.pattern == topic]
    return [entry.subscriber for entry in client.subscriptions(topic) if not entry.pattern]


def _topics_and_patterns(client: Client, _: Mapping[str, Any]) -> list[str]:
    return [topic.name for topic in client.topics()] + sorted({entry.pattern for entry in client.patterns()})


TOPIC = Name("topic", lambda client, _: [topic.name for topic in client.topics()])
TOPIC_OR_PATTERN = Name("topic", _topics_and_patterns)
SUBSCRIBER = Name("subscriber", _subscribers)
SESSION = Name("session", lambda client, _: [session.name for session in client.sessions()])


class Quantity(ParamType):
    """Bytes as "64MiB", milliseconds as "7d", or plain numbers of them."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.name = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from oncemq.config import sources

        try:
            number = value if isinstance(value, int) else sources.parse_quantity(value, self.unit)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return int(number)


_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w|)")
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class Duration(ParamType):
    """A span of time as "30s", "10m" or "2h", in seconds; a plain number is seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = _SPAN.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is not a span of time, such as 30s, 10m, 2h or 7d.", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


DURATION = Duration()


def moment_of(text: str) -> datetime | None:
    """A time as ISO 8601 has it (without a zone: local), or relative to this moment, as "-2h"; None: neither."""
    try:
        moment = _relative(text) or datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        return None
    # The broker counts from 1970 on.
    return moment if moment.year > 1970 else None


def _relative(text: str) -> datetime | None:
    match = _SPAN.fullmatch(text[1:])
    if text[0] not in "-\N{MINUS SIGN}" or match is None or not match[2]:
        return None
    return datetime.now(UTC) - timedelta(seconds=float(match[1]) * _SECONDS[match[2]])


class Start(ParamType):
    """`new`, `earliest`, an offset, or a time."""

    name = "new|earliest|OFFSET|TIME"
    words: tuple[str, ...] = ("new", "earliest")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int | datetime:
        if value in self.words or not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if value.isdecimal() and value.isascii():
            return int(value)
        moment = moment_of(value) if value else None
        if moment is None:
            words = ", nor ".join(f"`{word}`" for word in self.words)
            self.fail(f"{value!r} is neither {words}, nor an offset, nor a time (2026-01-31T12:00, -2h).", param, ctx)
        return moment

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


def bytes_of(argument: str) -> bytes:
    """A command-line argument's bytes, as they were given."""
    return argument.encode("utf-8", "surrogateescape")


def parse_headers(pairs: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Raises BadParameter where one is not of the form NAME=VALUE."""
    parsed = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE.", param_hint="--header")
        parsed.append((utf8(name, "a header's name"), bytes_of(value)))
    return parsed

"""What commands share: how to reach the broker, `--json`, names that complete, quantities with units."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from oncemq.cli.output import warn

if TYPE_CHECKING:
    from oncemq.client import Client

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

Function = Callable[..., None]
#: What was given on how to reach the broker; the rest is found in environment, file and defaults.
Reach = Mapping[str, Any]

_REACH_FIELDS = {"url": "url", "timeout": "timeout_s", "tries": "tries", "config": "config"}
#: Completion must not make anybody wait.
_COMPLETION_TIMEOUT_S = 0.3


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
    from oncemq import config

    for name, close in config.unknown_variables():
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
    from oncemq import config

    settings = config.load_client(reach)
    with oncemq.connect(
        settings.url,
        label=client_name or "anonymous",
        timeout_s=settings.timeout_s,
        tries=settings.tries,
        window=settings.window,
        batch_messages=settings.batch_messages,
        batch_bytes=settings.batch_bytes,
        linger_ms=settings.linger_ms,
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
        from oncemq import errors

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
    from oncemq.errors import NameInvalid

    try:
        text.encode()
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "surrogateescape")
        raise NameInvalid(f"{what} is UTF-8, and {str(raw)[1:]} is not") from None
    return text


def _subscribers(client: Client, given: Mapping[str, Any]) -> list[str]:
    return [entry.subscriber for entry in client.subscriptions(given["topic"])] if given.get("topic") else []


TOPIC = Name("topic", lambda client, _: [topic.name for topic in client.topics()])
SUBSCRIBER = Name("subscriber", _subscribers)
SESSION = Name("session", lambda client, _: [session.name for session in client.sessions()])


class Quantity(ParamType):
    """Bytes as "64MiB", milliseconds as "7d", or plain numbers of them."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.name = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from oncemq import config

        number = value if isinstance(value, int) else config.quantity(value, self.unit)
        if isinstance(number, str) or number < 0:
            example = "64MiB" if self.unit == "bytes" else "7d"
            self.fail(f"{value!r} is not a number of {self.unit}, nor one with a unit, such as {example}.", param, ctx)
        return number


class Start(ParamType):
    """`new`, `earliest`, or an offset."""

    name = "new|earliest|OFFSET"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if value in ("new", "earliest"):
            return str(value)
        if str(value).isdecimal():
            return int(value)
        return self.fail(f"{value!r} is neither `new`, nor `earliest`, nor an offset.", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(word) for word in ("new", "earliest") if word.startswith(incomplete)]

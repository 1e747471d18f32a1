"""Options that commands share: how to reach the broker, `--json`, names with completion, sizes, durations, times."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from oncemq.config.durations import duration_s, parse_duration_ms
from oncemq.protocol.patterns import is_pattern
from oncemq.terminal import bytes_of, json_line, note, utf8, warn

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.config.settings import ClientSettings

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

Function = Callable[..., None]
#: The options that say how to reach the broker. Missing values come from the environment, the file and the defaults.
Reach = Mapping[str, Any]

_REACH_FIELDS = {
    "url": "url",
    "context": "context",
    "token_file": "token_file",
    "tls": "tls",
    "timeout": "timeout_s",
    "tries": "tries",
    "config": "config",
}
#: Shell completion must not keep anybody waiting.
_COMPLETION_TIMEOUT_S = 0.3
#: Set by `oncemq work` for the commands that it runs. These may run `oncemq` themselves.
MESSAGE_VARIABLES = tuple(f"ONCEMQ_{name}" for name in ("TOPIC", "OFFSET", "KEY", "TRY", "TIME", "IDEMPOTENCY_KEY"))
HEADER_VARIABLE = "ONCEMQ_HEADER_"


class Duration(ParamType):
    """A duration such as 500ms, 30s, 10m, 2h or 7d. A bare number is a number of seconds."""

    name = "duration"

    def __init__(self, unit_ms: int) -> None:
        """`unit_ms`: the unit of the value that the command receives."""
        self._unit_ms = unit_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            duration_ms = parse_duration_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return duration_ms if self._unit_ms == 1 else duration_ms / self._unit_ms


class Size(ParamType):
    """A number of bytes, such as 64MiB. A bare number is a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from oncemq.config import sources

        try:
            return int(value if isinstance(value, int) else sources.parse_quantity(value, "bytes"))
        except ValueError as error:
            self.fail(str(error), param, ctx)


#: Durations as seconds (float) and as milliseconds (int).
DURATION = Duration(1000)
DURATION_MS = Duration(1)
SIZE = Size()


class ContextName(ParamType):
    """The name of a context. The shell completes it."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        from oncemq.config import contexts
        from oncemq.protocol.errors import OnceMQError

        try:
            names = contexts.load(contexts.path_of()).entries
        except OnceMQError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


CONTEXT = ContextName()
#: Why no option takes a token itself.
NO_TOKEN_VALUE = "other users of this machine see the arguments of commands, and the shell saves them in its history"


def _refuse_token(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    """The error does not show the value, which may be a token."""
    if value is not None and not ctx.resilient_parsing:
        raise click.UsageError(
            f"A token can't be an argument: {NO_TOKEN_VALUE}. Use --token-file, --context or ONCEMQ_TOKEN."
        )


def reaches_broker(function: Function) -> Function:
    """Add --url, --context, --token-file, --tls, --timeout, --tries and --config, and pass them on as `reach`."""

    @functools.wraps(function)
    def gathered(*args: Any, **options: Any) -> None:
        warn_of_unknown_variables()
        reach = {field: options.pop(name) for name, field in _REACH_FIELDS.items()}
        function(*args, reach=reach, **options)

    for option in (
        config_option,
        click.option(
            "--tries",
            metavar="N",
            type=click.IntRange(min=1),
            help="Number of attempts before the broker counts as unreachable. [default: 5]",
        ),
        click.option("--timeout", type=DURATION, metavar="TIME", help="Timeout of each attempt. [default: 1s]"),
        click.option(
            "--token",
            hidden=True,
            expose_value=False,
            is_flag=False,
            flag_value="",
            callback=_refuse_token,
            help="Refused, with the reason.",
        ),
        *credential_options,
        context_option,
        click.option(
            "--url",
            metavar="URL[,URL...]",
            help="Address of the broker, or of the broker and its standbys. [default: oncemq://127.0.0.1:5554]",
        ),
    ):
        gathered = option(gathered)
    return gathered


context_option = click.option(
    "--context",
    type=CONTEXT,
    metavar="NAME",
    help="Use this context, which has an address and credentials. [default: the current one, if no address is given; "
    "see `oncemq context`]",
)
credential_options = (
    click.option(
        "--tls",
        metavar="true|FILE",
        help="Encrypt the connection. FILE: the certificate of the broker's authority, if the system does not know it.",
    ),
    click.option(
        "--token-file", metavar="FILE", type=click.Path(dir_okay=False), help="File with the token of a user."
    ),
)


context_option = click.option(
    "--context",
    type=CONTEXT,
    metavar="NAME",
    help="Use this context, which has an address and credentials. [default: the current one, if no address is given; "
    "see `oncemq context`]",
)


def warn_of_unknown_variables() -> None:
    """Warn about environment variables that look like settings and have no effect: they may be misspelt."""
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
    """Note that errors are to be reported as JSON."""
    if value:
        ctx.meta["oncemq.json"] = True
    return value


def json_flag(help_text: str) -> Callable[[Any], Any]:
    """Return a decorator that adds --json."""
    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=remember_json, help=help_text)


json_option = json_flag("Print one JSON object per line.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
#: For commands that run until they are stopped.
idle_option = click.option(
    "--wait", "wait_s", metavar="TIME", type=DURATION, help="Exit after this time without a message. [default: never]"
)


def print_list(entries: Sequence[Any], as_json: bool, nothing: str, lines: Callable[[], Sequence[str]]) -> None:
    """Print entries as JSON lines or as the lines of a table. `nothing` is the note if there are none."""
    if not entries and not as_json:
        note(nothing)
        return
    for line in map(json_line, entries) if as_json else lines():
        click.echo(line)


def existing_keys(wanted: Sequence[str], known: Sequence[str], owner: str) -> list[str]:
    """Return the keys that a command names, each once. Raises Refused if one of them does not exist."""
    from oncemq.protocol.errors import Refused

    if unknown := sorted({*wanted} - {*known}):
        raise Refused(f"{owner} has no key '{unknown[0]}', so nothing was deleted")
    return list(dict.fromkeys(wanted))


def connect_options(settings: ClientSettings) -> dict[str, Any]:
    """Return the options of `oncemq.connect` that are settings of the client."""
    names = ("timeout_s", "tries", "window", "batch_messages", "batch_bytes", "linger_ms", "record")
    return {name: getattr(settings, name) for name in names} | settings.credentials


@contextmanager
def connected(reach: Reach, *, client_name: str | None = None) -> Iterator[Client]:
    """Connect a client. Each has a session of its own, so that any number of runs can go on at the same time."""
    import oncemq
    from oncemq.config import sources

    settings = sources.load_client(reach)
    with oncemq.connect(settings.url, label=client_name or "anonymous", **connect_options(settings)) as client:
        yield client


class Name(ParamType):
    """The name of something in the broker. The shell completes it if a broker answers quickly."""

    def __init__(self, name: str, known: Callable[[Client, Mapping[str, Any]], list[str]]) -> None:
        self.name = name
        #: Returns known names, given a client and the parameters that are already on the command line.
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return utf8(value, f"the name of a {self.name}")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        from oncemq.protocol import errors

        given = {name: ctx.params.get(name) for name in ("url", "context", "token_file", "tls", "config")}
        reach = given | {"timeout_s": _COMPLETION_TIMEOUT_S, "tries": 1}
        try:
            with connected(reach) as client:
                names = self._known(client, ctx.params)
        except (errors.OnceMQError, OSError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _subscribers(client: Client, parameters: Mapping[str, Any]) -> list[str]:
    topic = parameters.get("topic")
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
PRINCIPAL = Name("principal", lambda client, _: [share.owner for share in client.key_principals()])
NAMESPACE = Name("namespace", lambda client, _: [share.owner for share in client.registry_namespaces()])


def moment_of(text: str) -> datetime | None:
    """Parse a time: ISO 8601 (without a zone: local time), or relative to now, such as "-2h". None: it is neither."""
    try:
        if text[0] in "-\N{MINUS SIGN}" and (age_s := duration_s(text[1:])) is not None:
            moment = datetime.now(UTC) - timedelta(seconds=age_s)
        else:
            moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        return None
    # The broker counts time from 1970.
    return moment if moment.year > 1970 else None


class StartPosition(ParamType):
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
            words = ", ".join(f"`{word}`" for word in self.words)
            self.fail(f"{value!r} is not {words}, an offset or a time (2026-01-31T12:00, -2h).", param, ctx)
        return moment

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


def parse_headers(pairs: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Parse `NAME=VALUE` pairs. Raises BadParameter for anything else."""
    parsed = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE.", param_hint="--header")
        parsed.append((utf8(name, "the name of a header"), bytes_of(value)))
    return parsed

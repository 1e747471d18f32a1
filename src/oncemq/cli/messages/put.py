"""`oncemq put`: store one message from the command line, or many from standard input."""

from __future__ import annotations

import shlex
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from oncemq.cli.messages.command_state import keeps_state, state_option, stateful_client, store
from oncemq.cli.support.command import ADVICE, BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import (
    DURATION,
    SESSION,
    TOPIC,
    Reach,
    connected,
    json_option,
    parse_headers,
    reaches_broker,
)
from oncemq.protocol.errors import OnceMQError, TooLarge
from oncemq.terminal import bytes_of, count_of, duration_text, is_terminal, json_line, note, warn

if TYPE_CHECKING:
    from oncemq import Client, Receipt

#: Maximum number of puts without an answer. The client's window limits how many of them are in flight.
_HANDLES_MAX = 10_000
_READ_BYTES = 1 << 20
#: A value that is smaller than the largest batch by at least this much can't be too large.
_ENVELOPE_BYTES_MAX = 1 << 16
_PROGRESS_EVERY_S = 0.2
#: If the broker has not answered at all.
_NOT_KEPT_ADVICE = {
    "BROKER_AWAY": "Start the broker (`oncemq serve`), or check the address (`--url`). Then put the message again: it "
    "was neither stored nor kept."
}


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5, 9),
    advice={
        "TOO_LARGE": "Keep the large value elsewhere and send a reference to it. To change a quota, use "
        "`oncemq topics create TOPIC --quota SIZE --alter`.",
        "TOPIC_UNKNOWN": "Create the topic with `--create`, or subscribe to it first (`oncemq sub`).",
        "BROKER_AWAY": "Start the broker (`oncemq serve`), or check the address (`--url`). Messages from standard "
        "input that were in flight may or may not be stored.",
    },
    examples="""
        oncemq put orders "one pizza"
        oncemq put orders "one pizza" --key table-7 --header source=web --create
        oncemq put orders "one pizza" --url oncemq://10.0.0.1:5554,oncemq://10.0.0.2:5554
        oncemq put reminders "call Alice" --delay 30m --ttl 1d
        seq 1000 | oncemq put numbers - --create
        find . -print0 | oncemq put files --null --create --json
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("message", required=False)
@click.option("--as", "client_name", metavar="CLIENT", type=SESSION, help="Name of the producer, for --state.")
@click.option("--key", metavar="TEXT", help="The key of the messages.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header. May be repeated.")
@click.option(
    "--ttl",
    "ttl_s",
    metavar="TIME",
    type=DURATION,
    help="Time to live: discard the message if it is not delivered within this time.",
)
@click.option(
    "--delay", "delay_s", metavar="TIME", type=DURATION, help="Deliver the message no earlier than this time from now."
)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist. The topic is permanent.")
@click.option("--null", is_flag=True, help="Messages on standard input end with NUL instead of a newline.")
@json_option
@state_option
@reaches_broker
def put(
    topic: str,
    message: str | None,
    client_name: str | None,
    key: str | None,
    headers: tuple[str, ...],
    ttl_s: float | None,
    delay_s: float | None,
    create: bool,
    null: bool,
    as_json: bool,
    state: str | None,
    reach: Reach,
) -> None:
    """Store a message, or each line of standard input.

    Without a message, or with `-`, messages are read from standard input. The command ends when all messages are on the
    broker's disk, and prints their offsets and the number of subscriptions. Each message is stored once, also if
    packets are lost or the broker restarts.

    Once a broker is reachable, a message from the command line is saved in --state, and then sent. If the run is
    interrupted then, the next put, get, sub or unsub on this machine with the same --as stores it once and says so; do
    not put it again. If no broker answers, nothing is kept: put it again. After exit code 6, the error text says
    which case it is. Messages from standard input are not kept: a run that was interrupted may have stored some of
    them, and running it again stores those twice.

    Any number of puts can run at the same time, also with the same --as: each run has a session of its own.

    TIME is 500ms, 30s, 10m, 2h or 7d; a bare number is seconds. A message with --delay is on the broker's disk when the
    command ends, and gets its offset when the delay is over.
    """
    options: dict[str, Any] = {
        "key": None if key is None else bytes_of(key),
        "headers": dict(parse_headers(headers)) or None,
        "create": create,
    }
    if ttl_s == 0:
        raise click.UsageError("A message with --ttl 0 would never be delivered.")
    options |= {"ttl_s": ttl_s, "delay_s": delay_s or None}
    summary = Summary(topic, delay_s)
    if message is None or message == "-":
        with connected(reach, client_name=client_name) as client:
            _limit_batches_to_quota(client, topic, options)
            _put_stream(client, summary, sys.stdin.buffer, null, options)
            summary.check_retention(client)
    else:
        _set_broker_away_advice(_NOT_KEPT_ADVICE)
        with stateful_client(reach, state, client_name=client_name) as client:
            _set_broker_away_advice(READ_ONLY_ADVICE if keeps_state(client) else {})
            summary.add(store(client, topic, bytes_of(message), options))
            summary.check_retention(client)
    summary.print(as_json)


def _set_broker_away_advice(advice: Mapping[str, str]) -> None:
    """Set the advice about a broker that does not answer.

    Before the broker has answered, nothing is kept and nothing was sent. After that, the error text itself says that
    the message is kept; without an outbox, the message may or may not be stored.
    """
    meta = click.get_current_context().meta
    meta[ADVICE] = {**{code: text for code, text in meta[ADVICE].items() if code != "BROKER_AWAY"}, **advice}


class Summary:
    """What was stored, over all receipts."""

    def __init__(self, topic: str, delay_s: float | None = None) -> None:
        self.topic = topic
        self.topic_id = 0
        self.messages = 0
        #: None if the messages are delayed: they get their offsets when the delay is over.
        self.first_offset: int | None = None
        self.last_offset: int | None = None
        self.timestamp_ms = 0
        #: The smallest number of subscriptions that a message was stored for.
        self.subscriptions = -1
        self._delay_s = delay_s
        #: Some messages have no subscription and no retention: nobody will get them.
        self._is_discarded = False

    def add(self, receipt: Receipt) -> None:
        """Add a receipt."""
        if not self.messages:
            self.subscriptions = receipt.subscriptions
        self.messages += receipt.count
        self.topic_id, self.timestamp_ms = receipt.topic_id, receipt.timestamp_ms
        self.subscriptions = min(self.subscriptions, receipt.subscriptions)
        if receipt.offset >= 0:
            self.first_offset = receipt.offset if self.first_offset is None else self.first_offset
            self.last_offset = receipt.offset + receipt.count - 1

    def check_retention(self, client: Client) -> None:
        """Find out whether messages without a subscription are retained. For delayed ones that is decided later."""
        from oncemq.client.internal import internal_api

        if self.subscriptions or self._delay_s:
            return
        # The messages are stored, whether or not this question is answered.
        with suppress(OnceMQError):
            info = internal_api(client).find_topic(self.topic)
            self._is_discarded = info is not None and not info.retain_ms and not info.retain_bytes

    def print(self, as_json: bool) -> None:
        """Print the summary, and warn about messages that are not kept."""
        if as_json:
            click.echo(json_line(self.entry() if self.messages else {"topic": self.topic, "messages": 0}))
        elif not self.messages:
            note("Nothing to put: standard input was empty.")
        else:
            click.echo(self.text())
        if self._is_discarded:
            command = f"oncemq topics create {shlex.quote(self.topic)} --retain 1d --alter"
            warn(f"Not kept: '{self.topic}' has no subscription and no retention (`{command}`).")

    def entry(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def text(self) -> str:
        """Return the summary as a sentence."""
        stored = count_of(self.messages, "message")
        where = self._offsets_text()
        return f"Stored {stored} in {self.topic} {where}, for {count_of(self.subscriptions, 'subscription')}."

    def _offsets_text(self) -> str:
        if self.first_offset is None or self.last_offset is None:
            return f"for delivery in {duration_text((self._delay_s or 0) * 1000)}"
        if self.messages == 1:
            return f"at offset {self.first_offset}"
        is_contiguous = self.messages == self.last_offset - self.first_offset + 1
        others = "" if is_contiguous else ", with messages of other producers between them"
        return f"at offsets {self.first_offset} to {self.last_offset}{others}"


def _limit_batches_to_quota(client: Client, topic: str, options: dict[str, Any]) -> None:
    """Make batches small enough for the topic's quota.

    A topic never accepts a batch that is larger than its quota, so several messages together must not be. Including
    key and headers, batches fill at most three quarters of the quota.
    """
    from oncemq.client.internal import internal_api

    internal = internal_api(client)
    info = internal.find_topic(topic)
    if info is None or not info.quota_bytes:
        return
    bytes_max = max(1, info.quota_bytes // 4)
    internal.limit_batches(max(1, bytes_max // _batch_size(b"", options)), bytes_max)


def _batch_size(value: bytes, options: dict[str, Any]) -> int:
    """Return the size of one message as it is sent."""
    from oncemq.protocol.batch import encode_batch

    key, headers = options["key"], options["headers"]
    return len(encode_batch([value], None if key is None else [key], None if headers is None else [headers]))


def _put_stream(client: Client, summary: Summary, stream: BinaryIO, null: bool, options: dict[str, Any]) -> None:
    """Send messages while reading them. If that fails, report how many are stored before the error."""
    if stream.isatty():
        note("Reading messages, one per line. Ctrl-D ends.")
    handles: deque[Any] = deque()
    progress = Progress(is_terminal())
    try:
        for number, value in enumerate(_null_separated(stream) if null else _lines(stream), 1):
            _check_size(client, value, number, options)
            handles.append(client.put_nowait(summary.topic, value, **options))
            while len(handles) > _HANDLES_MAX or (handles and handles[0].done()):
                summary.add(handles.popleft().result())
            progress.show(summary.messages)
        _await_answers(client, handles, summary)
    except BaseException as error:
        if isinstance(error, TooLarge):
            _await_answers(client, handles, summary)
        progress.end()
        note(f"Interrupted: {count_of(summary.messages, 'message')} confirmed as stored.")
        raise
    progress.end()


def _check_size(client: Client, value: bytes, number: int, options: dict[str, Any]) -> None:
    """Raise TooLarge before the message is sent: nothing after it is stored, and the error can name the line."""
    limit_bytes = client.batch_bytes_max
    if len(value) + _ENVELOPE_BYTES_MAX <= limit_bytes or not limit_bytes:
        return
    if _batch_size(value, options) > limit_bytes:
        raise TooLarge(
            f"line {number} has {len(value):,} bytes; this broker accepts batches of at most {limit_bytes:,} bytes "
            "(`oncemq serve --batch-bytes-max`)"
        )


def _await_answers(client: Client, handles: deque[Any], summary: Summary) -> None:
    client.flush()
    while handles:
        summary.add(handles.popleft().result())


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    for line in stream:
        yield line.removesuffix(b"\n")


def _null_separated(stream: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while chunk := stream.read(_READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole
    if rest:
        yield rest


class Progress:
    """A counter on the terminal, if there is one."""

    def __init__(self, visible: bool) -> None:
        self._visible = visible
        self._next_s = time.monotonic() + _PROGRESS_EVERY_S
        self._shown = False

    def show(self, count: int) -> None:
        if self._visible and time.monotonic() >= self._next_s:
            click.echo(f"\r{count:,} stored", nl=False, err=True)
            self._next_s = time.monotonic() + _PROGRESS_EVERY_S
            self._shown = True

    def end(self) -> None:
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)

"""`oncemq put`: one message from the command line, or many from standard input."""

from __future__ import annotations

import shlex
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from oncemq.cli.messages.command_state import finishing, keeps, state_option, store
from oncemq.cli.support.command import ADVICE, BROKER_EXITS, LOOKING_ADVICE, Documented
from oncemq.cli.support.options import (
    DURATION,
    SESSION,
    TOPIC,
    Reach,
    bytes_of,
    connected,
    json_option,
    parse_headers,
    reaches_broker,
)
from oncemq.cli.support.output import count_of, duration_text, is_terminal, json_line, note, warn
from oncemq.protocol.errors import OnceMQError, TooLarge

if TYPE_CHECKING:
    from oncemq import Client, Receipt

#: Puts whose answers are still out, at the most; the client's window bounds what is really in flight.
_HANDLES_MAX = 10_000
_READ_BYTES = 1 << 20
#: A message this much smaller than the largest batch is surely not too large.
_ENVELOPE_BYTES_MAX = 1 << 16
_PROGRESS_EVERY_S = 0.2
#: Of a broker that did not answer at all.
_NOT_KEPT = {
    "BROKER_AWAY": "Start it (`oncemq serve`), or check the address (`--url`); then put the message again: it was "
    "neither stored nor kept."
}


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 5, 9),
    advice={
        "TOO_LARGE": "Keep the large value elsewhere and send a reference to it. A quota is changed with "
        "`oncemq topics create TOPIC --quota SIZE --alter`.",
        "TOPIC_UNKNOWN": "Make it with `--create`, or subscribe to it first (`oncemq sub`).",
        "BROKER_AWAY": "Start it (`oncemq serve`), or check the address (`--url`). Of standard input, what was in "
        "flight may or may not be stored.",
    },
    examples="""
        oncemq put orders "one pizza"
        oncemq put orders "one pizza" --key table-7 --header source=web --create
        oncemq put reminders "call Alice" --delay 30m --ttl 1d
        seq 1000 | oncemq put numbers - --create
        find . -print0 | oncemq put files --null --create --json
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("message", required=False)
@click.option("--as", "client_name", metavar="CLIENT", type=SESSION, help="Whose messages these are (see above).")
@click.option("--key", metavar="TEXT", help="The messages' key.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be repeated.")
@click.option("--ttl", "ttl_s", metavar="TIME", type=DURATION, help="Nobody gets it later than that, such as 10m.")
@click.option("--delay", "delay_s", metavar="TIME", type=DURATION, help="Nobody gets it before that, such as 30s.")
@click.option("--create", is_flag=True, help="Make the topic where there is none. It stays.")
@click.option("--null", is_flag=True, help="Messages on standard input end with NUL instead of a line's end.")
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

    Without a message, or with `-`, it reads standard input.
    Ends when everything is on the broker's disk, and says at which offset and for how many subscriptions.
    Lost packets and a broker that restarts meanwhile do no harm: each message is stored once.

    A message from the command line is written to --state once the broker has answered, and before it is sent: if this
    run is cut off then, the next put, get, sub or unsub on this machine with the same --as stores it, once, and says
    so; don't repeat it. Where no broker answers, nothing is kept: put it again. With exit code 6, the error says which
    it is. Messages from standard input are not kept at all: such a run that was cut off may have stored some, and
    running it again stores them again.

    Any number of puts may run side by side, also with the same --as: each run is a session of its own.

    Times are 500ms, 30s, 10m, 2h or 7d; a plain number is seconds. A message with a --delay is on the broker's disk
    at once, and gets its offset when it is due.
    """
    options: dict[str, Any] = {"key": _encoded(key), "headers": dict(parse_headers(headers)) or None, "create": create}
    if ttl_s == 0:
        raise click.UsageError("A message with --ttl 0 would never be delivered.")
    options |= {"ttl_s": ttl_s, "delay_s": delay_s or None}
    summary = Summary(topic, delay_s)
    if message is None or message == "-":
        with connected(reach, client_name=client_name) as client:
            _fit_quota(client, topic, options)
            _put_stream(client, summary, sys.stdin.buffer, null, options)
            summary.look(client)
    else:
        _advise_for_one(_NOT_KEPT)
        with finishing(reach, state, client_name=client_name) as client:
            _advise_for_one(LOOKING_ADVICE if keeps(client) else {})
            summary.add(store(client, topic, bytes_of(message), options))
            summary.look(client)
    summary.say(as_json)


def _advise_for_one(advice: Mapping[str, str]) -> None:
    """Until the broker has answered, nothing is kept, and nothing was sent. From then on, a message that is kept is
    said to be; one that is not may or may not be stored."""
    meta = click.get_current_context().meta
    meta[ADVICE] = {**{code: text for code, text in meta[ADVICE].items() if code != "BROKER_AWAY"}, **advice}


def _encoded(key: str | None) -> bytes | None:
    return None if key is None else bytes_of(key)


class Summary:
    """What was stored, over all answers."""

    def __init__(self, topic: str, delay_s: float | None = None) -> None:
        self.topic = topic
        self.topic_id = 0
        self.messages = 0
        #: None: they get their offsets when they are due.
        self.first_offset: int | None = None
        self.last_offset: int | None = None
        self.timestamp_ms = 0
        #: The fewest that a message was stored for.
        self.subscriptions = -1
        self._delay_s = delay_s
        #: Nobody will get some of them.
        self._is_lost = False

    def add(self, receipt: Receipt) -> None:
        if not self.messages:
            self.subscriptions = receipt.subscriptions
        self.messages += receipt.count
        self.topic_id, self.timestamp_ms = receipt.topic_id, receipt.timestamp_ms
        self.subscriptions = min(self.subscriptions, receipt.subscriptions)
        if receipt.offset >= 0:
            self.first_offset = receipt.offset if self.first_offset is None else self.first_offset
            self.last_offset = receipt.offset + receipt.count - 1

    def look(self, client: Client) -> None:
        """Whether what nobody is subscribed to is kept all the same. What is delayed finds out when it is due."""
        from oncemq.client.internal import internal_api

        if self.subscriptions or self._delay_s:
            return
        # It is stored, whatever becomes of this question.
        with suppress(OnceMQError):
            info = internal_api(client).find_topic(self.topic)
            self._is_lost = info is not None and not info.retain_ms and not info.retain_bytes

    def say(self, as_json: bool) -> None:
        if as_json:
            click.echo(json_line(self.entry() if self.messages else {"topic": self.topic, "messages": 0}))
        elif not self.messages:
            note("Nothing to put: standard input was empty.")
        else:
            click.echo(self.text())
        if self._is_lost:
            way = f"oncemq topics create {shlex.quote(self.topic)} --retain 1d --alter"
            warn(f"Not kept: '{self.topic}' has no subscription and no retention (`{way}`).")

    def entry(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def text(self) -> str:
        stored = count_of(self.messages, "message")
        return f"Stored {stored} in {self.topic} {self._place()}, for {count_of(self.subscriptions, 'subscription')}."

    def _place(self) -> str:
        if self.first_offset is None or self.last_offset is None:
            return f"for later, due in {duration_text((self._delay_s or 0) * 1000)}"
        if self.messages == 1:
            return f"at offset {self.first_offset}"
        is_whole = self.messages == self.last_offset - self.first_offset + 1
        return f"at offsets {self.first_offset} to {self.last_offset}" + ("" if is_whole else ", others' between them")


def _fit_quota(client: Client, topic: str, options: dict[str, Any]) -> None:
    """A topic never takes a batch that is larger than its quota, so several messages together must not be. With what
    belongs to each of them, they fill three quarters of it at the most."""
    from oncemq.client.internal import internal_api

    internal = internal_api(client)
    info = internal.find_topic(topic)
    if info is None or not info.quota_bytes:
        return
    part_bytes = max(1, info.quota_bytes // 4)
    internal.limit_batches(max(1, part_bytes // _batch_size(b"", options)), part_bytes)


def _batch_size(value: bytes, options: dict[str, Any]) -> int:
    """Of one message, as it is sent."""
    from oncemq.protocol.batch import encode_batch

    key, headers = options["key"], options["headers"]
    return len(encode_batch([value], None if key is None else [key], None if headers is None else [headers]))


def _put_stream(client: Client, summary: Summary, stream: BinaryIO, null: bool, options: dict[str, Any]) -> None:
    """Send while reading. If it breaks off, say how far it came, and let the error go on."""
    if stream.isatty():
        note("Reading messages, one per line; Ctrl-D ends.")
    handles: deque[Any] = deque()
    progress = Progress(is_terminal())
    try:
        for number, value in enumerate(_null_separated(stream) if null else _lines(stream), 1):
            _refuse_too_large(client, value, number, options)
            handles.append(client.put_nowait(summary.topic, value, **options))
            while len(handles) > _HANDLES_MAX or (handles and handles[0].done()):
                _take_answer(handles, summary)
            progress.show(summary.messages)
        _take_all_answers(client, handles, summary)
    except BaseException as error:
        if isinstance(error, TooLarge):
            _take_all_answers(client, handles, summary)
        progress.end()
        note(f"Broken off: {count_of(summary.messages, 'message')} had been answered as stored.")
        raise
    progress.end()


def _refuse_too_large(client: Client, value: bytes, number: int, options: dict[str, Any]) -> None:
    """Before it is sent: so nothing behind it is stored, and the message is known by its number."""
    limit_bytes = client.batch_bytes_max
    if len(value) + _ENVELOPE_BYTES_MAX <= limit_bytes or not limit_bytes:
        return
    if _batch_size(value, options) > limit_bytes:
        raise TooLarge(
            f"line {number} has {len(value):,} bytes; this broker takes batches of up to {limit_bytes:,} bytes "
            "(`oncemq serve --batch-bytes-max`)"
        )


def _take_all_answers(client: Client, handles: deque[Any], summary: Summary) -> None:
    client.flush()
    while handles:
        _take_answer(handles, summary)


def _take_answer(handles: deque[Any], summary: Summary) -> None:
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
    """A counter on the terminal, while there is one to see it."""

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

"""`oncemq get`: a subscriber's next messages, acked after they were printed.

Runs with the same subscriber take turns: each opens the subscription politely, for a short while, and waits
while another holds it. So none fences another, and each message is printed by one of them.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from oncemq.cli.command import BROKER_EXITS, Documented
from oncemq.cli.formats import FORMAT_HELP, Render, renderer
from oncemq.cli.options import SUBSCRIBER, TOPIC, Reach, connected, json_option, reaches_broker
from oncemq.cli.output import Output, is_terminal, note

if TYPE_CHECKING:
    from oncemq.client import Client, Subscription
    from oncemq.message import Message

#: A run that is killed without a chance to clean up keeps the others waiting for as long as this.
_HOLD_MS = 3_000
#: After this the subscription is given back, for others to have a turn; while there is nothing to print, it is
#: taken again. The rest of the hold is for printing and acking.
_TURN_S = 1.5
#: Somebody who watches is told after this.
_QUIET_S = 1.0
#: Others that hold the subscription are waited for at least this long.
_PATIENCE_S = 30.0
#: Messages between two acks: few at first, more while the reader keeps up, so that the hold covers them.
_CHUNK_MESSAGES_MIN = 16
_CHUNK_MESSAGES_MAX = 1024
_CHUNK_S = 0.25
_TERMINATED = 143


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 3, 5, 7, 9, 141, 143),
    advice={
        "TOPIC_UNKNOWN": "Subscribe first (`oncemq sub TOPIC SUBSCRIBER`): that makes the topic, too.",
        "BROKER_AWAY": "Start it (`oncemq serve`), or check the address (`--url`). "
        "What was printed last may come again.",
    },
    examples="""
        oncemq get orders kitchen
        oncemq get orders kitchen --count 100 --wait 30
        oncemq get orders kitchen --format "{offset}\\t{key}\\t{value}"
        oncemq get orders kitchen --json | jq .value
        until ! oncemq get orders kitchen; do :; done
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("subscriber", type=SUBSCRIBER)
@click.option(
    "--count", metavar="N", type=click.IntRange(min=1), default=1, help="So many messages at the most. [default: 1]"
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Wait so long for a message, if there is none. [default: 0]",
)
@click.option("--no-ack", is_flag=True, help="Leave the messages where they are: the next get prints them again.")
@click.option("--format", "template", metavar="TEXT", help=FORMAT_HELP)
@click.option("--null", is_flag=True, help="End each message with NUL instead of a line's end.")
@json_option
@reaches_broker
def get(
    topic: str,
    subscriber: str,
    count: int,
    wait_s: float,
    no_ack: bool,
    template: str | None,
    null: bool,
    as_json: bool,
    reach: Reach,
) -> None:
    """Print a subscriber's next messages, and ack them.

    A message is acked after it was printed. A run that is killed between the two prints the message again the
    next time. For an exact number of messages use --count: `| head` may read, and so have acked, more than it
    prints.

    Any number of gets may run side by side: they take turns, and each message goes to one of them. Nothing new
    is exit code 3.
    """
    from oncemq.errors import NothingNew

    render = renderer(as_json, template, null)
    with _orderly_on_sigterm(), connected(reach) as client:
        turns = Turns(client, topic, subscriber, wait_s)
        printed = _peek(turns, render, count) if no_ack else _take(turns, render, count)
    if not printed:
        raise NothingNew(f"There is nothing new in {topic} for {subscriber}.")


@contextmanager
def _orderly_on_sigterm() -> Iterator[None]:
    """The subscription is given back, so that the next get need not wait for the end of the hold."""
    former = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(_TERMINATED)


class Turns:
    """Access to a subscription, shared with others of the same name."""

    def __init__(self, client: Client, topic: str, subscriber: str, wait_s: float) -> None:
        self._client = client
        self._topic = topic
        self._subscriber = subscriber
        self._wait_until_s = time.monotonic() + wait_s
        self._patient_until_s = self._wait_until_s + _PATIENCE_S
        self._has_said_so = False

    def wait_s(self) -> float:
        """How long to wait for a message, within one turn."""
        return min(_TURN_S, max(0.0, self._wait_until_s - time.monotonic()))

    def waited_enough(self) -> bool:
        return time.monotonic() >= self._wait_until_s

    @contextmanager
    def turn(self) -> Iterator[Subscription]:
        subscription = self._open()
        try:
            yield subscription
        except BaseException:
            from oncemq.errors import OnceMQError

            # Given back if possible; what went wrong first is what counts.
            with suppress(OnceMQError):
                subscription.close()
            raise
        subscription.close()

    def _open(self) -> Subscription:
        from oncemq.errors import Busy

        patience_s = max(0.0, self._patient_until_s - time.monotonic())
        try:
            return self._try_to_open(min(patience_s, _QUIET_S))
        except Busy:
            if patience_s <= _QUIET_S:
                raise
        if is_terminal() and not self._has_said_so:
            note("waiting for another get of this subscription")
            self._has_said_so = True
        return self._try_to_open(patience_s - _QUIET_S)

    def _try_to_open(self, busy_s: float) -> Subscription:
        return self._client.subscription(
            self._topic, self._subscriber, hold_ms=_HOLD_MS, busy_s=busy_s, auto_ack=False
        )


def _take(turns: Turns, render: Render, count: int) -> int:
    """Turn after turn, until there are enough messages, or no more."""
    printer, printed = Printer(render), 0
    while printed < count:
        with turns.turn() as subscription:
            turn = _take_turn(turns, subscription, printer, count - printed)
        printed += turn
        if not turn and (printed or turns.waited_enough()):
            break
    return printed


def _take_turn(turns: Turns, subscription: Subscription, printer: Printer, count: int) -> int:
    ends_s = time.monotonic() + _TURN_S
    printed = 0
    while printed < count and time.monotonic() < ends_s:
        wait_s = 0.0 if printed else turns.wait_s()
        messages = subscription.get_many(min(count - printed, printer.chunk_messages), timeout_s=wait_s)
        if not messages:
            break
        delivered = printer.print(messages)
        if delivered:
            subscription.ack(messages[delivered - 1])
        _end_if_reader_has_gone(delivered, messages)
        printed += delivered
    return printed


def _peek(turns: Turns, render: Render, count: int) -> int:
    """Turns until there is something; then one, since the next would begin where this one did."""
    printer = Printer(render)
    while True:
        with turns.turn() as subscription:
            printed = _peek_turn(turns, subscription, printer, count)
        if printed or turns.waited_enough():
            return printed


def _peek_turn(turns: Turns, subscription: Subscription, printer: Printer, count: int) -> int:
    printed = 0
    while printed < count:
        wait_s = 0.0 if printed else turns.wait_s()
        messages = subscription.get_many(min(count - printed, _CHUNK_MESSAGES_MAX), timeout_s=wait_s)
        if not messages:
            break
        delivered = printer.print(messages)
        _end_if_reader_has_gone(delivered, messages)
        printed += delivered
    return printed


class Printer:
    """Prints messages, and learns how many of them the reader takes in a moment."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._output = Output()
        self.chunk_messages = _CHUNK_MESSAGES_MIN

    def print(self, messages: Sequence[Message]) -> int:
        """How many of them have left; fewer than all: the reader has gone."""
        begin_s = time.monotonic()
        delivered = self._output.deliver([self._render(message) for message in messages])
        if time.monotonic() - begin_s < _CHUNK_S:
            self.chunk_messages = min(2 * self.chunk_messages, _CHUNK_MESSAGES_MAX)
        else:
            self.chunk_messages = max(self.chunk_messages // 4, 1)
        return delivered


def _end_if_reader_has_gone(delivered: int, messages: Sequence[Message]) -> None:
    if delivered < len(messages):
        raise BrokenPipeError

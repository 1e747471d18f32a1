"""`oncemq get`: a subscriber's next messages, acked after they were printed.

Runs with the same subscriber take turns: each opens the subscription politely, for a short while, and waits
while another holds it. So none fences another, and each message is printed by one of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from oncemq.cli.command import BROKER_EXITS, Documented
from oncemq.cli.formats import FORMAT_HELP, Render, renderer
from oncemq.cli.options import TOPIC, Reach, connected, json_option, reaches_broker
from oncemq.cli.output import Output

if TYPE_CHECKING:
    from oncemq.client import Client, Subscription
    from oncemq.message import Message

#: A run that is killed keeps the others waiting for as long as this.
_HOLD_MS = 10_000
#: After this the subscription is given back, for others to have a turn.
_TURN_S = 3.0
#: Others that hold the subscription are waited for at least this long.
_PATIENCE_S = 30.0
_BATCH_MESSAGES = 1000


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 3, 5, 7, 141),
    examples="""
        oncemq get orders kitchen
        oncemq get orders kitchen --count 100 --wait 30
        oncemq get orders kitchen --format "{offset}\\t{key}\\t{value}"
        oncemq get orders kitchen --json | jq .value
        until ! oncemq get orders kitchen; do :; done
    """,
)
@click.argument("topic", type=TOPIC)
@click.argument("subscriber")
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

    A message is acked after it was printed and, where the output is a pipe, read: what `| head` leaves is still
    there for the next get. A run that is killed between the two prints the message again the next time.

    Any number of gets may run side by side: they take turns, and each message goes to one of them. Nothing new
    is exit code 3.
    """
    from oncemq.errors import NothingNew

    render = renderer(as_json, template, null)
    with connected(reach) as client:
        turns = Turns(client, topic, subscriber, wait_s)
        printed = _peek(turns, render, count) if no_ack else _take(turns, render, count)
    if not printed:
        raise NothingNew(f"There is nothing new in {topic} for {subscriber}.")


class Turns:
    """Access to a subscription, shared with others of the same name."""

    def __init__(self, client: Client, topic: str, subscriber: str, wait_s: float) -> None:
        self._client = client
        self._topic = topic
        self._subscriber = subscriber
        self._wait_until_s = time.monotonic() + wait_s
        self._patient_until_s = self._wait_until_s + _PATIENCE_S

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
        finally:
            subscription.close()

    def _open(self) -> Subscription:
        patience_s = max(0.0, self._patient_until_s - time.monotonic())
        return self._client.subscription(
            self._topic, self._subscriber, hold_ms=_HOLD_MS, busy_s=patience_s, auto_ack=False
        )


def _take(turns: Turns, render: Render, count: int) -> int:
    """Turn after turn, until there are enough messages, or no more."""
    output, printed = Output(), 0
    while printed < count:
        with turns.turn() as subscription:
            turn = _take_turn(turns, subscription, render, output, count - printed)
        printed += turn
        if not turn and (printed or turns.waited_enough()):
            break
    return printed


def _take_turn(turns: Turns, subscription: Subscription, render: Render, output: Output, count: int) -> int:
    ends_s = time.monotonic() + _TURN_S
    printed = 0
    while printed < count and time.monotonic() < ends_s:
        wait_s = 0.0 if printed else turns.wait_s()
        messages = subscription.get_many(min(count - printed, _BATCH_MESSAGES), timeout_s=wait_s)
        if not messages:
            break
        delivered = output.deliver([render(message) for message in messages])
        if delivered:
            subscription.ack(messages[delivered - 1])
        _end_if_reader_has_gone(delivered, messages)
        printed += delivered
    return printed


def _peek(turns: Turns, render: Render, count: int) -> int:
    """One turn, since the next would begin where this one did."""
    output, printed = Output(), 0
    with turns.turn() as subscription:
        while printed < count:
            messages = subscription.get_many(
                min(count - printed, _BATCH_MESSAGES), timeout_s=0.0 if printed else turns.wait_s()
            )
            if not messages and (printed or turns.waited_enough()):
                break
            delivered = output.deliver([render(message) for message in messages])
            _end_if_reader_has_gone(delivered, messages)
            printed += delivered
    return printed


def _end_if_reader_has_gone(delivered: int, messages: Sequence[Message]) -> None:
    if delivered < len(messages):
        raise BrokenPipeError

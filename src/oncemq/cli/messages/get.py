"""`oncemq get`: print a subscriber's next messages, then ack them.

Concurrent runs with the same subscriber take turns: each opens the subscription for a short time, and waits while
another run has it open. So no run fences another, and each message is printed by one of them. A subscription by pattern
can't be shared like this: the newest run takes it over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from oncemq.cli.messages.command_state import state_option, stateful_client
from oncemq.cli.messages.formats import Render
from oncemq.cli.messages.printer import Printer, Selector, prints_messages
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import DURATION, SUBSCRIBER, TOPIC_OR_PATTERN, Reach, reaches_broker
from oncemq.cli.support.signals import orderly_exit
from oncemq.protocol.patterns import is_pattern
from oncemq.terminal import is_terminal, note

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.client.consumer.sync import PatternSubscription, Subscription

#: A run that is killed without a chance to clean up delays the others by this time.
_HOLD_MS = 3_000
#: After this time the subscription is released for other runs, and opened again if nothing was printed yet. The rest of
#: the hold is for printing and acking.
_TURN_S = 1.5
#: After this time, a person at a terminal is told that the run is waiting.
_NOTICE_AFTER_S = 1.0
#: Minimum time that a run waits for others that have the subscription open.
_BUSY_WAIT_S = 30.0

#: Advice about errors for commands that consume messages.
CONSUMER_ADVICE = {
    "KIND_MISMATCH": "Run `oncemq work TOPIC SUBSCRIBER -- COMMAND`: it shares the messages with other workers.",
    "BROKER_AWAY": "Start the broker (`oncemq serve`), or check the address (`--url`). The messages that were printed "
    "last may be delivered again.",
}


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 3, 5, 7, 9, 141, 143),
    advice={
        **CONSUMER_ADVICE,
        "TOPIC_UNKNOWN": "Subscribe first (`oncemq sub TOPIC SUBSCRIBER`): this also creates the topic.",
    },
    examples="""
        oncemq get orders kitchen
        oncemq get orders kitchen --count 100 --wait 30s
        oncemq get orders kitchen --format "{offset}\\t{key}\\t{value}"
        oncemq get orders kitchen --json | jq .value
        oncemq get "orders.*" audit --header source=web --format "{topic}: {value}"
        until ! oncemq get orders kitchen; do :; done
    """,
)
@click.argument("topic", type=TOPIC_OR_PATTERN)
@click.argument("subscriber", type=SUBSCRIBER)
@click.option(
    "--count", metavar="N", type=click.IntRange(min=1), default=1, help="Maximum number of messages. [default: 1]"
)
@click.option(
    "--wait",
    "wait_s",
    metavar="TIME",
    type=DURATION,
    default=0.0,
    help="How long to wait for a message if there is none. [default: 0]",
)
@click.option("--no-ack", is_flag=True, help="Do not ack: the next get prints the same messages again.")
@prints_messages
@state_option
@reaches_broker
def get(
    topic: str,
    subscriber: str,
    count: int,
    wait_s: float,
    no_ack: bool,
    selector: Selector,
    render: Render,
    state: str | None,
    reach: Reach,
) -> None:
    """Print a subscriber's next messages, and ack them.

    A message is acked after it was printed. If the run is killed between the two, the next run prints the message
    again. An ack that was being sent is kept in --state, and the next run finishes it. For an exact number of messages
    use --count: with `| head`, more messages may be read and acked than are shown. With --header, messages without the
    header are skipped, and acked with the others.

    Any number of gets can run at the same time: they take turns, and each message goes to one of them. (With a pattern,
    a second get takes the subscription over from the first.) If there are no new messages, the exit code is 3.
    """
    from oncemq.protocol.errors import NothingNew

    with orderly_exit(), stateful_client(reach, state) as client, shared_subscriptions_explained(topic, subscriber):
        printer = Printer(client, render, selector, acks=not no_ack)
        turns = SubscriptionTurns(client, topic, subscriber, wait_s)
        printed = _print_and_keep(turns, printer, count) if no_ack else _print_and_ack(turns, printer, count)
    if not printed:
        raise NothingNew(f"There are no new messages in {topic} for {subscriber}.")


@contextmanager
def shared_subscriptions_explained(topic: str, subscriber: str) -> Iterator[None]:
    """Replace the error about a shared subscription by one that names the command to use."""
    from oncemq.protocol.errors import KindMismatch, SubscriptionExists

    try:
        yield
    except (KindMismatch, SubscriptionExists):
        raise KindMismatch(f"{subscriber} on {topic} is a shared subscription: its messages are for workers") from None


class SubscriptionTurns:
    """Access to a subscription in turns with other runs of the same subscriber."""

    def __init__(self, client: Client, topic: str, subscriber: str, wait_s: float) -> None:
        self._client = client
        self._topic = topic
        self._subscriber = subscriber
        self._wait_until_s = time.monotonic() + wait_s
        self._busy_until_s = self._wait_until_s + _BUSY_WAIT_S
        self._has_notified = False
        #: Duration of one turn.
        self.turn_s = math.inf if is_pattern(topic) else _TURN_S

    def wait_s(self) -> float:
        """Return how long to wait for a message within this turn."""
        return min(self.turn_s, max(0.0, self._wait_until_s - time.monotonic()))

    def is_wait_over(self) -> bool:
        return time.monotonic() >= self._wait_until_s

    @contextmanager
    def turn(self) -> Iterator[Subscription | PatternSubscription]:
        """Open the subscription for one turn."""
        subscription = self._open()
        try:
            yield subscription
        except BaseException:
            from oncemq.protocol.errors import OnceMQError

            # Release it if possible; the first error is the one to report.
            with suppress(OnceMQError):
                subscription.close()
            raise
        subscription.close()

    def _open(self) -> Subscription | PatternSubscription:
        from oncemq.protocol.errors import Busy

        if is_pattern(self._topic):
            return self._client.pattern_subscription(self._topic, self._subscriber, auto_ack=False)
        left_s = max(0.0, self._busy_until_s - time.monotonic())
        try:
            return self._try_to_open(min(left_s, _NOTICE_AFTER_S))
        except Busy:
            if left_s <= _NOTICE_AFTER_S:
                raise
        if is_terminal() and not self._has_notified:
            note("Waiting for another get of this subscription.")
            self._has_notified = True
        return self._try_to_open(left_s - _NOTICE_AFTER_S)

    def _try_to_open(self, busy_s: float) -> Subscription:
        return self._client.subscription(self._topic, self._subscriber, hold_ms=_HOLD_MS, busy_s=busy_s, auto_ack=False)


def _print_and_ack(turns: SubscriptionTurns, printer: Printer, count: int) -> int:
    """Take turns until enough messages are printed or there are no more."""
    printed = 0
    while printed < count:
        with turns.turn() as subscription:
            in_turn, is_end = _print_turn(turns, subscription, printer, count - printed, turns.turn_s)
        printed += in_turn
        if is_end and (printed or turns.is_wait_over()):
            break
    return printed


def _print_and_keep(turns: SubscriptionTurns, printer: Printer, count: int) -> int:
    """Take turns until something was printed. There is only one turn that prints: the next would start again."""
    while True:
        with turns.turn() as subscription:
            printed, _ = _print_turn(turns, subscription, printer, count, math.inf)
        if printed or turns.is_wait_over():
            return printed


def _print_turn(
    turns: SubscriptionTurns,
    subscription: Subscription | PatternSubscription,
    printer: Printer,
    count: int,
    turn_s: float,
) -> tuple[int, bool]:
    """Print for at most `turn_s`. Returns how many messages were printed, and whether there were no more."""
    end_s = time.monotonic() + turn_s
    printed = 0
    while printed < count and time.monotonic() < end_s:
        messages = subscription.get_many(printer.chunk_messages, timeout_s=0.0 if printed else turns.wait_s())
        if not messages:
            return printed, True
        printed += printer.print(subscription, messages, count - printed)
    return printed, False

"""`oncemq get`: a subscriber's next messages, acked after they were printed.

Runs with the same subscriber take turns: each opens the subscription politely, for a short while, and waits
while another holds it. So none fences another, and each message is printed by one of them. A subscription by
pattern can't be held: there the newest run has it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from oncemq.cli.messages.command_state import finishing, state_option
from oncemq.cli.messages.formats import Render
from oncemq.cli.messages.printer import Printer, Wanted, prints_messages
from oncemq.cli.support.command import BROKER_EXITS, Documented
from oncemq.cli.support.options import SUBSCRIBER, TOPIC_OR_PATTERN, Reach, is_pattern, reaches_broker
from oncemq.cli.support.output import is_terminal, note
from oncemq.cli.support.signals import orderly

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.client.consumer.sync import PatternSubscription, Subscription

#: A run that is killed without a chance to clean up keeps the others waiting for as long as this.
_HOLD_MS = 3_000
#: After this the subscription is given back, for others to have a turn; while there is nothing to print, it is
#: taken again. The rest of the hold is for printing and acking.
_TURN_S = 1.5
#: Somebody who watches is told after this.
_QUIET_S = 1.0
#: Others that hold the subscription are waited for at least this long.
_PATIENCE_S = 30.0

#: What to do about errors of those that consume.
CONSUMING_ADVICE = {
    "KIND_MISMATCH": "Run `oncemq work TOPIC SUBSCRIBER -- COMMAND`: it shares the messages with other workers.",
    "BROKER_AWAY": "Start it (`oncemq serve`), or check the address (`--url`). What was printed last may come again.",
}


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 3, 5, 7, 9, 141, 143),
    advice={
        **CONSUMING_ADVICE,
        "TOPIC_UNKNOWN": "Subscribe first (`oncemq sub TOPIC SUBSCRIBER`): that makes the topic, too.",
    },
    examples="""
        oncemq get orders kitchen
        oncemq get orders kitchen --count 100 --wait 30
        oncemq get orders kitchen --format "{offset}\\t{key}\\t{value}"
        oncemq get orders kitchen --json | jq .value
        oncemq get "orders.*" audit --header source=web --format "{topic}: {value}"
        until ! oncemq get orders kitchen; do :; done
    """,
)
@click.argument("topic", type=TOPIC_OR_PATTERN)
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
@prints_messages
@state_option
@reaches_broker
def get(
    topic: str,
    subscriber: str,
    count: int,
    wait_s: float,
    no_ack: bool,
    wanted: Wanted,
    render: Render,
    state: str | None,
    reach: Reach,
) -> None:
    """Print a subscriber's next messages, and ack them.

    A message is acked after it was printed. A run that is killed between the two prints the message again the
    next time; an ack that was on its way is in --state, and is finished by the next run. For an exact number of
    messages use --count: `| head` may read, and so have acked, more than it prints. With --header, messages that
    don't have it are left out, and acked with the others.

    Any number of gets may run side by side: they take turns, and each message goes to one of them. (Not so with
    a pattern: there a second get takes the subscription over from the first.) Nothing new is exit code 3.
    """
    from oncemq.protocol.errors import NothingNew

    with orderly(), finishing(reach, state) as client, told_of_sharing(topic, subscriber):
        printer = Printer(client, render, wanted, acks=not no_ack)
        turns = Turns(client, topic, subscriber, wait_s)
        printed = _peek(turns, printer, count) if no_ack else _take(turns, printer, count)
    if not printed:
        raise NothingNew(f"There is nothing new in {topic} for {subscriber}.")


@contextmanager
def told_of_sharing(topic: str, subscriber: str) -> Iterator[None]:
    """A shared subscription is for workers: say so in words of the command line."""
    from oncemq.protocol.errors import KindMismatch, SubscriptionExists

    try:
        yield
    except (KindMismatch, SubscriptionExists):
        raise KindMismatch(f"{subscriber} on {topic} is shared: its messages are for workers") from None


class Turns:
    """Access to a subscription, shared with others of the same name."""

    def __init__(self, client: Client, topic: str, subscriber: str, wait_s: float) -> None:
        self._client = client
        self._topic = topic
        self._subscriber = subscriber
        self._wait_until_s = time.monotonic() + wait_s
        self._patient_until_s = self._wait_until_s + _PATIENCE_S
        self._has_said_so = False
        #: How long one turn lasts.
        self.turn_s = math.inf if is_pattern(topic) else _TURN_S

    def wait_s(self) -> float:
        """How long to wait for a message, within one turn."""
        return min(self.turn_s, max(0.0, self._wait_until_s - time.monotonic()))

    def waited_enough(self) -> bool:
        return time.monotonic() >= self._wait_until_s

    @contextmanager
    def turn(self) -> Iterator[Subscription | PatternSubscription]:
        subscription = self._open()
        try:
            yield subscription
        except BaseException:
            from oncemq.protocol.errors import OnceMQError

            # Given back if possible; what went wrong first is what counts.
            with suppress(OnceMQError):
                subscription.close()
            raise
        subscription.close()

    def _open(self) -> Subscription | PatternSubscription:
        from oncemq.protocol.errors import Busy

        if is_pattern(self._topic):
            return self._client.pattern_subscription(self._topic, self._subscriber, auto_ack=False)
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
        return self._client.subscription(self._topic, self._subscriber, hold_ms=_HOLD_MS, busy_s=busy_s, auto_ack=False)


def _take(turns: Turns, printer: Printer, count: int) -> int:
    """Turn after turn, until there are enough messages, or no more."""
    printed = 0
    while printed < count:
        with turns.turn() as subscription:
            turn, is_all = _take_turn(turns, subscription, printer, count - printed)
        printed += turn
        if is_all and (printed or turns.waited_enough()):
            break
    return printed


def _take_turn(
    turns: Turns, subscription: Subscription | PatternSubscription, printer: Printer, count: int
) -> tuple[int, bool]:
    """How many were printed, and whether there was nothing more."""
    ends_s = time.monotonic() + turns.turn_s
    printed = 0
    while printed < count and time.monotonic() < ends_s:
        wait_s = 0.0 if printed else turns.wait_s()
        messages = subscription.get_many(printer.chunk_messages, timeout_s=wait_s)
        if not messages:
            return printed, True
        printed += printer.print(subscription, messages, count - printed)
    return printed, False


def _peek(turns: Turns, printer: Printer, count: int) -> int:
    """Turns until there is something; then one, since the next would begin where this one did."""
    while True:
        with turns.turn() as subscription:
            printed = _peek_turn(turns, subscription, printer, count)
        if printed or turns.waited_enough():
            return printed


def _peek_turn(turns: Turns, subscription: Subscription | PatternSubscription, printer: Printer, count: int) -> int:
    printed = 0
    while printed < count:
        wait_s = 0.0 if printed else turns.wait_s()
        messages = subscription.get_many(printer.chunk_messages, timeout_s=wait_s)
        if not messages:
            break
        printed += printer.print(subscription, messages, count - printed)
    return printed

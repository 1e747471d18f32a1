"""Messages on their way to standard output: which of them, in which form, and when they may be acked: once they
have left."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.messages.command_state import acknowledge
from oncemq.cli.messages.formats import FORMAT_HELP, Render, renderer
from oncemq.cli.support.options import Function, json_option, parse_headers
from oncemq.cli.support.output import Output
from oncemq.cli.support.signals import held_back

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.client.consumer.sync import PatternSubscription, Subscription
    from oncemq.protocol.message import Message

Wanted = Callable[["Message"], bool]

#: Messages between two acks: few at first, more while the reader keeps up, so that one ack covers a moment's work.
_CHUNK_MESSAGES_MIN = 16
_CHUNK_MESSAGES_MAX = 1024
_CHUNK_S = 0.25


def prints_messages(function: Function) -> Function:
    """Adds --header, --format, --null and --json, and hands them on as `wanted` and `render`."""

    @functools.wraps(function)
    def gathered(headers: tuple[str, ...], template: str | None, null: bool, as_json: bool, **options: Any) -> None:
        function(wanted=wanted_of(headers), render=renderer(as_json, template, null), **options)

    for option in (
        json_option,
        click.option("--null", is_flag=True, help="End each message with NUL instead of a line's end."),
        click.option("--format", "template", metavar="TEXT", help=FORMAT_HELP),
        click.option(
            "--header",
            "headers",
            metavar="NAME=VALUE",
            multiple=True,
            help="Only messages with this header; may be repeated.",
        ),
    ):
        gathered = option(gathered)
    return gathered


def wanted_of(headers: tuple[str, ...]) -> Wanted:
    """Each header that is named must have one of the values that it is named with."""
    accepted: dict[str, set[bytes]] = {}
    for name, value in parse_headers(headers):
        accepted.setdefault(name, set()).add(value)
    return lambda message: all(message.headers.get(name) in values for name, values in accepted.items())


class Printer:
    """Prints those messages that are wanted, and learns how many of them the reader takes in a moment."""

    def __init__(self, client: Client, render: Render, wanted: Wanted, *, acks: bool = True) -> None:
        self._client = client
        self._render = render
        self._wanted = wanted
        self._acks = acks
        self._output = Output()
        self.chunk_messages = _CHUNK_MESSAGES_MIN

    def print(self, subscription: Subscription | PatternSubscription, messages: Sequence[Message], most: int) -> int:
        """How many were printed, `most` at the most. What has left is acked, and what is not wanted before it.

        Raises BrokenPipeError where the reader has gone.
        """
        places = [place for place, message in enumerate(messages) if self._wanted(message)][:most]
        try:
            self._deliver([self._render(messages[place]) for place in places])
        finally:
            # Whatever ended it, what the reader has is done.
            with held_back():
                self._ack(subscription, messages, places, most)
        if self._output.delivered < len(places):
            raise BrokenPipeError
        return len(places)

    def _deliver(self, records: list[bytes]) -> None:
        begin_s = time.monotonic()
        self._output.deliver(records)
        if time.monotonic() - begin_s < _CHUNK_S:
            self.chunk_messages = min(2 * self.chunk_messages, _CHUNK_MESSAGES_MAX)
        else:
            self.chunk_messages = max(self.chunk_messages // 4, 1)

    def _ack(
        self,
        subscription: Subscription | PatternSubscription,
        messages: Sequence[Message],
        places: Sequence[int],
        most: int,
    ) -> None:
        if self._acks:
            done = messages[: _done_count(len(messages), places, self._output.delivered, most)]
            # Each topic has a position of its own.
            acknowledge(self._client, subscription, list({message.topic_id: message for message in done}.values()))


def _done_count(total: int, places: Sequence[int], delivered: int, most: int) -> int:
    """Messages from the first on that were printed or not wanted.

    >>> _done_count(10, [2, 5], delivered=1, most=9), _done_count(10, [2, 5], 2, most=2), _done_count(10, [2], 1, 9)
    (5, 6, 10)
    """
    if delivered < len(places):
        return places[delivered]
    return places[-1] + 1 if len(places) == most else total

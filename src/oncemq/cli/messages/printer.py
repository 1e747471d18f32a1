"""Prints messages to standard output: which of them, in which form, and when they are acked.

A message is acked after the reader of the output has taken it.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.messages.command_state import acknowledge
from oncemq.cli.messages.formats import FORMAT_HELP, Render, renderer
from oncemq.cli.support.options import Function, json_option, parse_headers
from oncemq.cli.support.output import Output
from oncemq.cli.support.signals import signals_deferred
from oncemq.terminal import is_terminal

if TYPE_CHECKING:
    from oncemq import Client
    from oncemq.client.consumer.sync import PatternSubscription, Subscription
    from oncemq.protocol.message import Message

Selector = Callable[["Message"], bool]

#: Messages between two acks. It starts small and grows while the reader keeps up, so that one ack covers about the
#: work of `_CHUNK_S`.
_CHUNK_MESSAGES_MIN = 16
_CHUNK_MESSAGES_MAX = 1024
_CHUNK_S = 0.25


def prints_messages(function: Function) -> Function:
    """Add --header, --format, --null and --json, and pass them on as `selector` and `render`."""

    @functools.wraps(function)
    def gathered(headers: tuple[str, ...], template: str | None, null: bool, as_json: bool, **options: Any) -> None:
        render = renderer(as_json, template, null, for_terminal=is_terminal(sys.stdout))
        function(selector=selector_of(headers), render=render, **options)

    for option in (
        json_option,
        click.option("--null", is_flag=True, help="End each message with NUL instead of a newline."),
        click.option("--format", "template", metavar="TEXT", help=FORMAT_HELP),
        click.option(
            "--header",
            "headers",
            metavar="NAME=VALUE",
            multiple=True,
            help="Print only messages with this header. May be repeated.",
        ),
    ):
        gathered = option(gathered)
    return gathered


def selector_of(headers: tuple[str, ...]) -> Selector:
    """Return a filter: each header that is named must have one of the values that are named with it."""
    accepted: dict[str, set[bytes]] = {}
    for name, value in parse_headers(headers):
        accepted.setdefault(name, set()).add(value)
    return lambda message: all(message.headers.get(name) in values for name, values in accepted.items())


class Printer:
    """Prints the selected messages, and adapts the number of messages per ack to the speed of the reader."""

    def __init__(self, client: Client, render: Render, selector: Selector, *, acks: bool = True) -> None:
        self._client = client
        self._render = render
        self._selector = selector
        self._acks = acks
        self._output = Output()
        self.chunk_messages = _CHUNK_MESSAGES_MIN

    def print(self, subscription: Subscription | PatternSubscription, messages: Sequence[Message], limit: int) -> int:
        """Print at most `limit` of the messages, and return how many.

        What the reader has taken is acked, together with the messages before it that were not selected. Raises
        BrokenPipeError if the reader has exited.
        """
        selected = [index for index, message in enumerate(messages) if self._selector(message)][:limit]
        records = [self._render(messages[index]) for index in selected]
        with signals_deferred():
            # What the reader has taken is acked, even if a signal comes now.
            delivered = self._deliver(records)
            if self._acks:
                done = messages[: _done_count(len(messages), selected, delivered, limit)]
                # Each topic has a position of its own.
                acknowledge(self._client, subscription, list({message.topic_id: message for message in done}.values()))
        if delivered < len(selected):
            raise BrokenPipeError
        return len(selected)

    def _deliver(self, records: list[bytes]) -> int:
        begin_s = time.monotonic()
        delivered = self._output.deliver(records)
        if time.monotonic() - begin_s < _CHUNK_S:
            self.chunk_messages = min(2 * self.chunk_messages, _CHUNK_MESSAGES_MAX)
        else:
            self.chunk_messages = max(self.chunk_messages // 4, 1)
        return delivered


def _done_count(total: int, selected: Sequence[int], delivered: int, limit: int) -> int:
    """Return how many messages from the first one on were printed or not selected.

    >>> _done_count(10, [2, 5], delivered=1, limit=9), _done_count(10, [2, 5], 2, limit=2), _done_count(10, [2], 1, 9)
    (5, 6, 10)
    """
    if delivered < len(selected):
        return selected[delivered]
    return selected[-1] + 1 if len(selected) == limit else total

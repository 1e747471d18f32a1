"""How a subscription is shared: the options of `sub --shared` and `work`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from oncemq.cli.support.options import DURATION, TOPIC, Function


class Policy(NamedTuple):
    """What was given; None where nothing was."""

    lease_s: float | None = None
    tries_max: int | None = None
    dead_topic: str | None = None
    key_order: bool | None = None

    def given(self) -> dict[str, Any]:
        """For `client.subscribe_shared`."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def check(self, reach: Mapping[str, Any]) -> None:
        """Raises UsageError for what can't be meant."""
        if self.dead_topic is not None and self.tries_max is None:
            raise click.UsageError("--dead needs --tries-max: after how many deliveries a message goes there.")
        if reach["tries"] is not None and self.tries_max is None:
            raise click.UsageError(
                "--tries is how often the broker is asked. How often a message is delivered is --tries-max."
            )


def shares(function: Function) -> Function:
    """Adds --lease, --tries-max, --dead and --key-order, and hands them on as `policy`."""

    @functools.wraps(function)
    def gathered(
        lease_s: float | None, tries_max: int | None, dead_topic: str | None, key_order: bool, **options: Any
    ) -> None:
        function(policy=Policy(lease_s, tries_max, dead_topic, key_order or None), **options)

    for option in (
        click.option("--key-order", is_flag=True, help="Of messages with the same key only one is out, the oldest."),
        click.option(
            "--dead",
            "dead_topic",
            metavar="TOPIC",
            type=TOPIC,
            help="Where messages go that were delivered too often. [default: TOPIC.dead]",
        ),
        click.option(
            "--tries-max",
            metavar="N",
            type=click.IntRange(min=1),
            help="Deliver a message so often, then give it up. [default: without end]",
        ),
        click.option(
            "--lease",
            "lease_s",
            metavar="TIME",
            type=DURATION,
            help="A worker that was not heard of for so long has lost its messages to others. [default: 30s]",
        ),
    ):
        gathered = option(gathered)
    return gathered

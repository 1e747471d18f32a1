"""Settings of a shared subscription: the options of `sub --shared` and `work`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from oncemq.cli.support.options import DURATION, TOPIC, Function


class SharedOptions(NamedTuple):
    """The options that were given; None for those that were not."""

    lease_s: float | None = None
    tries_max: int | None = None
    dead_topic: str | None = None
    key_order: bool | None = None

    def given(self) -> dict[str, Any]:
        """Return the arguments for `client.subscribe_shared`."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def check(self, reach: Mapping[str, Any]) -> None:
        """Raise UsageError for options that do not fit together."""
        if self.dead_topic is not None and self.tries_max is None:
            raise click.UsageError("--dead needs --tries-max: the number of deliveries before a message goes there.")
        if reach["tries"] is not None and self.tries_max is None:
            raise click.UsageError(
                "--tries is the number of attempts to reach the broker. The number of deliveries is --tries-max."
            )


def shared_options(function: Function) -> Function:
    """Add --lease, --tries-max, --dead and --key-order, and pass them on as `shared_options`."""

    @functools.wraps(function)
    def gathered(
        lease_s: float | None, tries_max: int | None, dead_topic: str | None, key_order: bool, **options: Any
    ) -> None:
        function(shared_options=SharedOptions(lease_s, tries_max, dead_topic, key_order or None), **options)

    for option in (
        click.option("--key-order", is_flag=True, help="Deliver messages with the same key one at a time, in order."),
        click.option(
            "--dead",
            "dead_topic",
            metavar="TOPIC",
            type=TOPIC,
            help="Topic for messages that reach --tries-max. [default: TOPIC.dead]",
        ),
        click.option(
            "--tries-max",
            metavar="N",
            type=click.IntRange(min=1),
            help="Maximum delivery attempts before a message is dead-lettered. [default: unlimited]",
        ),
        click.option(
            "--lease",
            "lease_s",
            metavar="TIME",
            type=DURATION,
            help="How long a worker may be silent before its messages are given to other workers. [default: 30s]",
        ),
    ):
        gathered = option(gathered)
    return gathered

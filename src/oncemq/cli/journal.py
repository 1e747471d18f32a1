"""`oncemq journal`: tools for the journal of a broker that is not running."""

from __future__ import annotations

import click

from oncemq.cli.command import Documented, DocumentedGroup
from oncemq.cli.options import json_option


@click.group(
    cls=DocumentedGroup,
    exits=(0, 1, 2, 9),
    examples="""
        oncemq journal check ./oncemq-data
        oncemq journal export ./oncemq-data saved.jsonl
        oncemq journal cut ./oncemq-data 1234567
    """,
)
def journal() -> None:
    """Check, export and cut a stopped broker's journal.

    A broker that finds its journal damaged refuses to start. Copy the data folder; `check` names the damaged
    place, `export` saves every message that can be read, `cut` gives up what lies behind a place, so that the
    broker starts again.
    """

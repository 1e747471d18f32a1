"""`oncemq pipeline`: each of its commands is a file of its own, imported when it runs."""

from __future__ import annotations

import click

from oncemq.cli.support.command import Documented, Lazy, LazyGroup

_PIPELINES = "Your own"
_READY = "Ready-made"

COMMANDS = {
    "validate": Lazy(
        "oncemq.cli.pipeline.validate:validate", _PIPELINES, "Explain all that is wrong with pipelines; run nothing."
    ),
    "run": Lazy("oncemq.cli.pipeline.run:run", _PIPELINES, "Run a pipeline that a file declares."),
    "archive": Lazy(
        "oncemq.cli.pipeline.archive:archive", _READY, "Archive topics as Parquet or Delta, each message once."
    ),
    "restore": Lazy(
        "oncemq.cli.pipeline.restore:restore", _READY, "Put archived messages back into topics, each message once."
    ),
    "audit": Lazy(
        "oncemq.cli.pipeline.audit:audit",
        _READY,
        "Prove from the records of clients that nothing was lost, doubled or out of order, or list what was.",
    ),
    "stats": Lazy(
        "oncemq.cli.pipeline.stats:stats", _READY, "Count rates, sizes, lag and latency per topic and window."
    ),
}


class PipelineGroup(Documented, LazyGroup):
    """A noun whose verbs are imported one by one: most of them need Spark."""


@click.group(
    cls=PipelineGroup,
    lazy=COMMANDS,
    exits=(0, 1, 2, 6),
    examples="""
        oncemq pipeline validate orders.yaml
        oncemq pipeline run orders.yaml
    """,
)
def pipeline() -> None:
    """Declare data pipelines on Spark, and run them.

    A pipeline is a YAML file. It reads topics, takes their values apart, transforms them with SQL or Python, and
    writes to a topic, to Parquet, Delta or PostgreSQL, each message once. Needs `pip install "oncemq[spark]"`.
    """

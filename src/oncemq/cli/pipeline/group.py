"""`oncemq pipeline`: the list of its commands. Each one is in a module of its own, which is imported on use."""

from __future__ import annotations

import click

from oncemq.cli.support.command import Documented, Lazy, LazyGroup

_PIPELINES = "Your own"
_READY = "Built in"

COMMANDS = {
    "validate": Lazy(
        "oncemq.cli.pipeline.validate:validate", _PIPELINES, "Report all problems of pipelines without running them."
    ),
    "run": Lazy("oncemq.cli.pipeline.run:run", _PIPELINES, "Run pipelines that files declare."),
    "deploy": Lazy(
        "oncemq.cli.pipeline.deploy:deploy",
        _PIPELINES,
        "Render a spark-submit script or a Kubernetes manifest that runs pipelines elsewhere.",
    ),
    "archive": Lazy(
        "oncemq.cli.pipeline.archive:archive", _READY, "Archive topics as Parquet or Delta, each message once."
    ),
    "restore": Lazy(
        "oncemq.cli.pipeline.restore:restore", _READY, "Restore archived messages into topics, each message once."
    ),
    "audit": Lazy(
        "oncemq.cli.pipeline.audit:audit",
        _READY,
        "Prove that nothing was lost, duplicated or out of order, or list what was.",
    ),
    "stats": Lazy(
        "oncemq.cli.pipeline.stats:stats", _READY, "Show rates, sizes, lag and latency per topic and time window."
    ),
}


class PipelineGroup(Documented, LazyGroup):
    """A group whose commands are imported on use, because most of them need Spark."""


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

    A pipeline is a YAML file. It reads topics, parses their values, transforms them with SQL or Python, and writes
    them to a topic, Parquet, Delta or PostgreSQL, each message once. Needs `pip install "oncemq[spark]"`.
    """

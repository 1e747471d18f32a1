"""Pipelines: declared in a file or in Python, checked before Spark starts, and run with exactly-once processing.

    from oncemq.spark.pipeline import Pipeline, Source, Transform, Value, run
    from oncemq.spark.targets import TopicTarget

    totals = Pipeline(
        name="order-totals",
        source=Source(topic="orders"),
        value=Value(format="json", schema="id BIGINT, price DOUBLE, pieces INT"),
        transform=Transform(sql="SELECT id, price * pieces AS total FROM messages"),
        target=TopicTarget(topic="totals", create=True),
        checkpoint="/var/lib/pipelines/order-totals",
    )
    print(run(totals, url="oncemq://127.0.0.1:5554").rows)

`run` returns at the end of the run; `start` returns a handle with `progress`, `status`, `wait()` and `stop()`. Both
work in any thread, and several pipelines can run in one session.

`load(file)` reads a pipeline from a YAML file, and `validate(file)` finds the problems of one; neither needs Spark. On
the command line: `oncemq pipeline validate` and `run`.
"""

from __future__ import annotations

from oncemq.spark.pipeline.model import Encoding, Input, Pipeline, Source, Table, Transform, Trigger, Value, Watermark
from oncemq.spark.pipeline.pipeline_file import load, validate
from oncemq.spark.pipeline.runner import run, start
from oncemq.spark.pipeline.runs.handle import RunningPipeline

__all__ = [
    "Encoding",
    "Input",
    "Pipeline",
    "RunningPipeline",
    "Source",
    "Table",
    "Transform",
    "Trigger",
    "Value",
    "Watermark",
    "load",
    "run",
    "start",
    "validate",
]

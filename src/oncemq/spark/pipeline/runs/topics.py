"""Checks, before a query starts, that the topics of a pipeline exist: a mistyped name would yield no rows at all."""

from __future__ import annotations

from oncemq.protocol import errors
from oncemq.spark.broker import Broker
from oncemq.spark.pipeline.model import Pipeline, Source
from oncemq.spark.pipeline.problems import nearest


def require_topics(pipeline: Pipeline, broker: Broker) -> None:
    """Raises TopicUnknown, which names a similar topic, unless the source creates its topics."""
    missing: dict[str, tuple[str, ...]] = {
        view: each.source.names for view, each in pipeline.inputs.items() if _must_exist(each.source)
    }
    missing |= {view: (table.topic,) for view, table in pipeline.tables.items() if table.topic}
    if not missing:
        return
    with broker.connect(label="spark", tries=30, record="") as client:
        known = {topic.name for topic in client.topics()}
    for view, names in missing.items():
        for name in names:
            if name not in known:
                _refuse(name, f"tables.{view}" if view in pipeline.tables else _path(pipeline, view), known)


def _must_exist(source: Source) -> bool:
    return not source.create and not source.pattern


def _path(pipeline: Pipeline, view: str) -> str:
    return "source" if pipeline.source is not None else f"sources.{view}"


def _refuse(name: str, path: str, known: set[str]) -> None:
    create = "create it (`oncemq topics create`), subscribe to it first (`oncemq sub`)"
    create += ", or write `create: true`" if path.startswith("source") else ""
    advice = nearest(name, sorted(known), "")
    raise errors.TopicUnknown(f"{path}: there is no topic '{name}'; {advice + ' If not, ' if advice else ''}{create}")

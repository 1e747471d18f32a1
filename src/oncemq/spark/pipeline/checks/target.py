"""Checks of the sections `target` and `checkpoint`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.patterns import matches, refuse_pattern
from oncemq.spark.pipeline.checks.storage import check_checkpoint_folder, check_output_folder
from oncemq.spark.pipeline.model import PartialPipeline, Source
from oncemq.spark.pipeline.problems import Path, Problem, problem
from oncemq.spark.targets.declarations import ConsoleTarget, DeltaTarget, ParquetTarget, PostgresTarget, TopicTarget


def check_target(partial: PartialPipeline) -> Iterator[Problem]:
    target = partial.target
    if isinstance(target, TopicTarget) and partial.encoding.value == "typed":
        yield from _check_typed(target)
    if isinstance(target, TopicTarget) and target.topic:
        refusal = refuse_topic_name(target.topic)
        if refusal is not None:
            yield problem(("target", "topic"), refusal.text, "choose another name")
        for each in partial.inputs.values():
            if each.source is not None:
                yield from check_loop(each.source, target.topic, ("target", "topic"))
    elif isinstance(target, ParquetTarget | DeltaTarget):
        yield from _check_folder_target(partial, target)
    elif isinstance(target, PostgresTarget):
        yield from _check_postgres(target)
    elif isinstance(target, ConsoleTarget) and target.rows < 1:
        yield problem(("target", "rows"), f"{target.rows} rows can't be shown", "write a number above 0")


def _check_typed(target: TopicTarget) -> Iterator[Problem]:
    if not target.topic:
        yield problem(("target", "value"), "rows with topics of their own can't be typed", "write `topic: NAME`")
    if target.create:
        text = "a topic that the pipeline creates has no schema"
        yield problem(("target", "create"), text, "remove it, and create the topic with `oncemq schema put`")


def check_checkpoint(partial: PartialPipeline) -> Iterator[Problem]:
    if partial.checkpoint:
        yield from check_checkpoint_folder(partial.checkpoint, ("checkpoint",))


def check_loop(source: Source, topic: str, path: Path) -> Iterator[Problem]:
    """Check that the pipeline does not read what it writes to a topic."""
    if topic in source.names:
        text = f"{topic!r} is also a topic of the source: the pipeline would read its own output forever"
        yield problem(path, text, "write to another topic")
    elif source.pattern and not refuse_pattern(source.pattern) and matches(source.pattern.split("."), topic):
        text = f"{topic!r} matches the source's pattern {source.pattern!r}: the pipeline would read its own output"
        yield problem(path, text, "write to a topic that does not match")


def _check_folder_target(partial: PartialPipeline, target: ParquetTarget | DeltaTarget) -> Iterator[Problem]:
    kind = "parquet" if isinstance(target, ParquetTarget) else "delta"
    if not target.path:
        yield problem(("target", kind), "the path of the folder is empty", "write a path")
        return
    yield from check_output_folder(target.path, ("target", kind), target.storage)
    if kind == "delta" and importlib.util.find_spec("deltalake") is None:
        yield problem(("target", kind), "deltalake is not installed", 'pip install "oncemq[spark]"')
    checkpoint = partial.checkpoint
    if checkpoint and (_is_visible_in(checkpoint, target.path) or _is_visible_in(target.path, checkpoint)):
        text = "checkpoint and output are one inside the other: readers would take checkpoint files for output"
        yield problem(("checkpoint",), text, "give each a folder of its own")


def _is_visible_in(inner: str, outer: str) -> bool:
    """Whether a folder is inside another one, and readers of that one see it. They ignore names that begin with _."""
    inner, outer = (path if "://" in path else os.path.realpath(path) for path in (inner, outer))
    relative = inner.removeprefix(outer.rstrip("/") + "/")
    return inner == outer or (relative != inner and not relative.startswith("_"))


def _check_postgres(target: PostgresTarget) -> Iterator[Problem]:
    path = ("target", "postgres")
    if not target.table.strip():
        yield problem(("target", "table"), "the name of the table is empty", "write one")
    if importlib.util.find_spec("psycopg") is None:
        yield problem(path, "psycopg is not installed", 'pip install "oncemq[postgres]"')
        return
    import psycopg

    try:
        settings = psycopg.conninfo.conninfo_to_dict(target.url)
    except psycopg.Error as error:
        # The text of the error contains the URL, which may contain a password.
        text = f"this is not the URL of a database ({type(error).__name__})"
        yield problem(path, text, "write postgresql://USER@HOST/DATABASE")
        return
    if not settings:
        yield problem(path, "the URL of the database is empty", "write postgresql://USER@HOST/DATABASE")

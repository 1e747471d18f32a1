"""Checks of the sections `source` and `sources`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.patterns import refuse_pattern
from oncemq.spark.pipeline.model import PartialPipeline, Source
from oncemq.spark.pipeline.problems import Path, Problem, nearest, problem


def check_sources(partial: PartialPipeline) -> Iterator[Problem]:
    for each in partial.inputs.values():
        if each.source is not None:
            yield from _check_source(each.source, each.source_path)
    yield from _check_subscriptions(partial)


def _check_source(source: Source, path: Path) -> Iterator[Problem]:
    given = [key for key in ("topic", "topics", "pattern") if getattr(source, key)]
    if len(given) != 1:
        text = f"the source has {' and '.join(given)}" if given else "the source names no topic"
        advice = "give it exactly one of topic, topics and pattern"
        yield Problem(path=path, text=text, advice=advice, is_missing=not given)
    yield from _check_names(source, path)
    if source.subscription:
        refusal = refuse_name(source.subscription, "subscriber's name")
        if refusal is not None:
            yield problem((*path, "subscription"), refusal.text, "choose another name")
    if source.pattern and source.create:
        yield problem((*path, "create"), "a pattern names no topic to create", "remove it")
    yield from _check_start(source, path)


def _check_subscriptions(partial: PartialPipeline) -> Iterator[Problem]:
    """Two sources with one subscription would fence each other."""
    seen: dict[str, str] = {}
    for view, each in partial.sources.items():
        name = (each.source.subscription if each.source else "") or f"{partial.name}.{view}"
        if name in seen:
            text = f"the sources {seen[name]!r} and {view!r} have the same subscription, {name!r}"
            yield problem((*each.source_path, "subscription"), text, "give each source a subscription of its own")
        seen.setdefault(name, view)


def _check_names(source: Source, path: Path) -> Iterator[Problem]:
    named: list[tuple[Path, str]] = [((*path, "topic"), source.topic)] if source.topic else []
    named += [((*path, "topics", at), name) for at, name in enumerate(source.topics)]
    for where, name in named:
        refusal = refuse_topic_name(name)
        if refusal is not None:
            advice = "write `pattern: …` for several topics" if "*" in name or "#" in name else "choose another name"
            yield problem(where, refusal.text, advice)
    for at, name in enumerate(source.topics):
        if name in source.topics[:at]:
            yield problem((*path, "topics", at), f"the topic {name!r} is listed twice", "list it once")
    refusal = refuse_pattern(source.pattern) if source.pattern else None
    if refusal is not None:
        yield problem((*path, "pattern"), refusal.text, "use * for one level and # for any number: orders.*, #.eu")


def _check_start(source: Source, path: Path) -> Iterator[Problem]:
    if source.pattern and source.start not in ("earliest", "latest"):
        text = "with a pattern, a pipeline starts at `earliest` or `latest`"
        yield problem((*path, "start"), text, "write one of them, or name the topics with `topics: […]`")
    elif isinstance(source.start, str):
        yield from _check_offset(source.start, (*path, "start"), "earliest, latest, a time or a mapping by topic")
    else:
        yield from _check_topic_starts(source, source.start, path)


def _check_topic_starts(source: Source, starts: Mapping[str, int | str], source_path: Path) -> Iterator[Problem]:
    for topic, start in starts.items():
        path = (*source_path, "start", topic)
        if topic not in source.names:
            advice = nearest(topic, source.names, "only use topics of this source")
            yield Problem(path=path, text=f"the source has no topic {topic!r}", advice=advice, is_key=True)
        if isinstance(start, str):
            yield from _check_offset(start, path, "an offset, earliest, latest or a time")


def _check_offset(text: str, path: Path, allowed: str) -> Iterator[Problem]:
    if text in ("earliest", "latest"):
        return
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        yield problem(path, f"{text!r} is not a valid start", f"write {allowed}, such as 2026-01-31T12:00:00Z")
        return
    if time.tzinfo is None:
        advice = f"add one: {text}Z" if "T" in text else "add a time of day and a zone"
        yield problem(path, f"the time {text} has no zone", advice)

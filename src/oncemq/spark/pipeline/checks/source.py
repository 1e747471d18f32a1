"""Checks of the section `source`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.patterns import refuse_pattern
from oncemq.spark.pipeline.model import PartialPipeline, Source
from oncemq.spark.pipeline.problems import Path, Problem, nearest, problem


def check_source(partial: PartialPipeline) -> Iterator[Problem]:
    source = partial.source
    if source is None:
        return
    given = [key for key in ("topic", "topics", "pattern") if getattr(source, key)]
    if len(given) != 1:
        text = f"the source has {' and '.join(given)}" if given else "the source names no topic"
        advice = "give it exactly one of topic, topics and pattern"
        yield Problem(path=("source",), text=text, advice=advice, is_missing=not given)
    yield from _check_names(source)
    if source.subscription:
        refusal = refuse_name(source.subscription, "subscriber's name")
        if refusal is not None:
            yield problem(("source", "subscription"), refusal.text, "choose another name")
    yield from _check_start(source)


def _check_names(source: Source) -> Iterator[Problem]:
    named: list[tuple[Path, str]] = [(("source", "topic"), source.topic)] if source.topic else []
    named += [(("source", "topics", at), name) for at, name in enumerate(source.topics)]
    for path, name in named:
        refusal = refuse_topic_name(name)
        if refusal is not None:
            advice = "write `pattern: …` for several topics" if "*" in name or "#" in name else "choose another name"
            yield problem(path, refusal.text, advice)
    for at, name in enumerate(source.topics):
        if name in source.topics[:at]:
            yield problem(("source", "topics", at), f"the topic {name!r} is listed twice", "list it once")
    refusal = refuse_pattern(source.pattern) if source.pattern else None
    if refusal is not None:
        yield problem(("source", "pattern"), refusal.text, "use * for one level and # for any number: orders.*, #.eu")


def _check_start(source: Source) -> Iterator[Problem]:
    if source.pattern and source.start not in ("earliest", "latest"):
        text = "with a pattern, a pipeline starts at `earliest` or `latest`"
        yield problem(("source", "start"), text, "write one of them, or name the topics with `topics: […]`")
    elif isinstance(source.start, str):
        yield from _check_offset(source.start, ("source", "start"), "earliest, latest, a time or a mapping by topic")
    else:
        yield from _check_topic_starts(source, source.start)


def _check_topic_starts(source: Source, starts: Mapping[str, int | str]) -> Iterator[Problem]:
    for topic, start in starts.items():
        path = ("source", "start", topic)
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

"""Checks of `trigger`, `ack_last` and `broker_timeout`, and of durations."""

from __future__ import annotations

from collections.abc import Iterator

from oncemq.config.durations import parse_duration_ms
from oncemq.spark.pipeline.model import PartialPipeline
from oncemq.spark.pipeline.problems import Path, Problem, problem


def check_trigger(partial: PartialPipeline) -> Iterator[Problem]:
    if partial.broker_timeout:
        yield from check_duration(partial.broker_timeout, ("broker_timeout",))
    if not partial.trigger.every:
        return
    yield from check_duration(partial.trigger.every, ("trigger", "every"))
    if partial.ack_last:
        advice = "remove it, or write `trigger: available-now`: a continuous run acks as it proceeds"
        yield problem(("ack_last",), "only a run that ends has a last batch to ack", advice)


def check_duration(text: str, path: Path) -> Iterator[Problem]:
    try:
        parse_duration_ms(text)
    except ValueError:
        yield problem(path, f"{text!r} is not a duration", "write one such as 500ms, 30s or 10m")

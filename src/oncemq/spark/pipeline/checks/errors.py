"""Checks of `on_error` and `dead_letter`, which say what happens to values that can't be parsed."""

from __future__ import annotations

from collections.abc import Iterator

from oncemq.protocol.names import refuse_topic_name
from oncemq.spark.pipeline.checks.target import check_loop
from oncemq.spark.pipeline.model import PartialPipeline, Value
from oncemq.spark.pipeline.problems import Path, Problem, problem
from oncemq.spark.targets.declarations import ConsoleTarget


def check_on_error(partial: PartialPipeline, value: Value, path: Path) -> Iterator[Problem]:
    if value.on_error and value.malformed != "fail":
        yield problem((*path, "malformed"), "`on_error` and `malformed` say the same twice", "remove one of them")
    if value.on_error != "dead_letter":
        if value.dead_letter:
            advice = "write `on_error: dead_letter`, or remove it"
            yield problem((*path, "dead_letter"), "there are no dead letters", advice)
        return
    if isinstance(partial.target, ConsoleTarget):
        yield problem((*path, "on_error"), "the console has no dead letters", "write fail or drop")
    if partial.output != "append":
        text = f"`output: {partial.output}` has no dead letters"
        yield problem((*path, "on_error"), text, "write fail or drop, or `output: append`")
    topic = value.dead_letter or f"{partial.name}.dead"
    refusal = refuse_topic_name(topic)
    key = (*path, "dead_letter" if value.dead_letter else "on_error")
    if refusal is not None:
        yield problem(key, refusal.text, "choose another name with `dead_letter: TOPIC`")
    for each in partial.inputs.values():
        if each.source is not None:
            yield from check_loop(each.source, topic, key)

"""Checks of `output`: which targets can write changed rows or the whole result."""

from __future__ import annotations

from collections.abc import Iterator

from oncemq.spark.pipeline.model import PartialPipeline
from oncemq.spark.pipeline.problems import Problem, problem
from oncemq.spark.targets.declarations import ConsoleTarget, TopicTarget


def check_output(partial: PartialPipeline) -> Iterator[Problem]:
    output, target = partial.output, partial.target
    if output == "append" or target is None or isinstance(target, ConsoleTarget):
        return
    if not isinstance(target, TopicTarget):
        advice = "remove it, and give the pipeline a `watermark`; or write to a topic"
        yield problem(("output",), f"only topics and the console have `output: {output}`", advice)
    elif output == "update" and not partial.encoding.key:
        text = "`output: update` needs a key, by which consumers find the newest row"
        yield Problem(path=("target",), text=text, advice="add `key: COLUMN` to the target", is_missing=True)

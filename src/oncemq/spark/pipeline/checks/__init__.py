"""Checks of a pipeline: each section alone, then the sections together. They need neither Spark nor a broker.

A check yields the problems of a PartialPipeline. A section that could not be read is None; the reader has reported that
problem. Pipelines from files and from Python go through the same checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from oncemq.config.contexts import check_name
from oncemq.protocol.errors import SettingInvalid
from oncemq.spark.pipeline.checks.output import check_output
from oncemq.spark.pipeline.checks.source import check_sources
from oncemq.spark.pipeline.checks.target import check_checkpoint, check_target
from oncemq.spark.pipeline.checks.transform import check_transform
from oncemq.spark.pipeline.checks.trigger import check_trigger
from oncemq.spark.pipeline.checks.value import check_values, check_watermarks
from oncemq.spark.pipeline.checks.views import check_views
from oncemq.spark.pipeline.model import PartialPipeline
from oncemq.spark.pipeline.problems import Problem, problem

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,99}")


def check(partial: PartialPipeline, folder: str) -> Iterator[Problem]:
    """Yield all problems. Python modules are also looked up in `folder`."""
    if partial.name is not None and not _NAME.fullmatch(partial.name):
        advice = "use up to 100 letters, digits, spaces and . _ -, and begin with a letter, digit or _"
        text = f"{partial.name!r} can't be a pipeline's name, because it also names a folder"
        yield problem(("name",), text, advice)
    yield from _check_context(partial.context)
    yield from check_views(partial)
    yield from check_sources(partial)
    yield from check_values(partial)
    yield from check_watermarks(partial)
    yield from check_trigger(partial)
    yield from check_target(partial)
    yield from check_output(partial)
    yield from check_checkpoint(partial)
    yield from check_transform(partial, folder)


def _check_context(name: str) -> Iterator[Problem]:
    """Whether it exists is known where the pipeline runs."""
    if not name:
        return
    try:
        check_name(name)
    except SettingInvalid as error:
        text, _, advice = error.text.partition(": ")
        yield problem(("context",), text, advice)

"""Files of pipelines: read, and everything that is wrong with them explained, before Spark starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from oncemq.protocol.errors import PipelineInvalid
from oncemq.spark.pipeline.checks import check
from oncemq.spark.pipeline.mistakes import Mistake, PlacedMistake, path_text
from oncemq.spark.pipeline.model import Pipeline
from oncemq.spark.pipeline.sections import draft_of, read_draft
from oncemq.spark.pipeline.yaml_tree import Document, read


class Declared(msgspec.Struct, frozen=True):
    """A file that was read."""

    document: Document
    #: None where there are mistakes.
    pipeline: Pipeline | None
    mistakes: list[PlacedMistake]


def validate(file: str, environment: Mapping[str, str] = os.environ) -> Declared:
    """Reads a file and explains all its mistakes. Raises OSError where the file can't be read."""
    document = read(file, environment)
    folder = folder_of(file)
    draft = read_draft(document, folder)
    if document.root is not None:
        document.mistakes += _news(document.mistakes, check(draft, folder))
    mistakes = document.placed()
    return Declared(document, None if mistakes else draft.finished(), mistakes)


def _news(known: list[Mistake], found: Iterable[Mistake]) -> list[Mistake]:
    """Without what seems to be missing where something could not be read."""
    unread = {mistake.path[:-1] for mistake in known}
    return [mistake for mistake in found if not (mistake.is_missing and mistake.path in unread)]


def load(file: str, environment: Mapping[str, str] = os.environ) -> Pipeline:
    """The pipeline of a file. Raises PipelineInvalid with all mistakes, and OSError."""
    declared = validate(file, environment)
    if declared.pipeline is None:
        raise PipelineInvalid("\n".join(mistake.sentence for mistake in declared.mistakes))
    return declared.pipeline


def ensure_valid(pipeline: Pipeline, folder: str = ".") -> None:
    """Raises PipelineInvalid with all mistakes of a pipeline that was made in Python."""
    mistakes = list(check(draft_of(pipeline), folder))
    if not pipeline.checkpoint:
        advice = "name one that stays the same from run to run"
        raise PipelineInvalid("\n".join([*_sentences(mistakes), f"checkpoint: there is no folder; {advice}"]))
    if mistakes:
        raise PipelineInvalid("\n".join(_sentences(mistakes)))


def _sentences(mistakes: list[Mistake]) -> list[str]:
    return [f"{path_text(mistake.path)}: {mistake.sentence}" for mistake in mistakes]


def folder_of(file: str) -> str:
    return os.path.dirname(os.path.abspath(file))

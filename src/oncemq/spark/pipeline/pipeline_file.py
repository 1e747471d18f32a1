"""Reads the file of a pipeline, and reports all of its problems before Spark starts."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from oncemq.protocol.errors import PipelineInvalid
from oncemq.spark.pipeline.checks import check
from oncemq.spark.pipeline.model import Pipeline, partial_of
from oncemq.spark.pipeline.problems import FileProblem, path_text
from oncemq.spark.pipeline.sections import read_partial
from oncemq.spark.pipeline.yaml_tree import Document, read


class ValidatedFile(msgspec.Struct, frozen=True):
    document: Document
    #: None if there are problems.
    pipeline: Pipeline | None
    problems: list[FileProblem]


def validate(file: str, environment: Mapping[str, str] = os.environ, *, runs_here: bool = True) -> ValidatedFile:
    """Read a file and find all of its problems. Raises OSError if the file can't be read.

    `runs_here`: also find the problems of this machine, such as a folder that is not writable."""
    document = read(file, environment)
    folder = folder_of(file)
    partial = read_partial(document, folder)
    if document.root is not None:
        # Something is not missing if the reader could not read it.
        unread = {problem.path[:-1] for problem in document.problems}
        document.problems += [
            problem
            for problem in check(partial, folder)
            if not (problem.is_missing and problem.path in unread) and (runs_here or not problem.is_local)
        ]
    problems = document.file_problems()
    return ValidatedFile(document, None if problems else partial.to_pipeline(), problems)


def load(file: str, environment: Mapping[str, str] = os.environ) -> Pipeline:
    """Load the pipeline of a file. Raises PipelineInvalid, with all problems, and OSError."""
    validated = validate(file, environment)
    if validated.pipeline is None:
        raise PipelineInvalid("\n".join(problem.message for problem in validated.problems))
    return validated.pipeline


def ensure_valid(pipeline: Pipeline, folder: str = ".") -> None:
    """Check a pipeline that was made in Python. Raises PipelineInvalid, with all problems."""
    problems = [f"{path_text(problem.path)}: {problem.message}" for problem in check(partial_of(pipeline), folder)]
    if pipeline.source is None and not pipeline.sources:
        problems.append("source: there is none; give the pipeline a `source` or `sources`")
    if pipeline.source is not None and pipeline.sources:
        problems.append("source: there are also `sources`; keep one of them")
    if not pipeline.checkpoint:
        problems.append("checkpoint: there is no folder; name one that stays the same from run to run")
    if problems:
        raise PipelineInvalid("\n".join(problems))


def folder_of(file: str) -> str:
    """The folder of a file, as an absolute path."""
    return os.path.dirname(os.path.abspath(file))

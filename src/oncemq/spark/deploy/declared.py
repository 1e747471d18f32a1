"""The file of a pipeline as it is deployed: its text, and the environment variables that it needs where it runs.

The values of variables may be secrets. They are never read here: a file is checked with a placeholder for each one.
Problems of this machine, such as a folder that is not writable, do not matter where the pipeline will run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

import msgspec

from oncemq.protocol import errors
from oncemq.spark.pipeline.model import Pipeline
from oncemq.spark.pipeline.pipeline_file import validate
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget

_VARIABLE = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: Stands for the value of a variable. It is accepted as a name, a folder and the URL of a database.
_PLACEHOLDER = "postgresql://placeholder"


class DeclaredPipeline(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: Pipeline
    #: As it was given, and its text.
    file: str
    text: str
    #: The environment variables that the file names, in their order.
    variables: tuple[str, ...]

    @property
    def file_name(self) -> str:
        return os.path.basename(self.file)

    @property
    def modules(self) -> tuple[str, ...]:
        """Python files in the folder of the file that the pipeline imports."""
        transform = self.pipeline.transform
        if transform is None or not transform.python:
            return ()
        path = os.path.join(os.path.dirname(self.file), transform.python.partition(":")[0].replace(".", os.sep) + ".py")
        return (path,) if os.path.exists(path) else ()

    @property
    def is_checkpoint_local(self) -> bool:
        return "://" not in self.pipeline.checkpoint

    @property
    def local_folders(self) -> list[str]:
        """Folders of this machine that the target is in. The pipeline needs them where it runs."""
        target = self.pipeline.target
        if isinstance(target, ParquetTarget | DeltaTarget) and "://" not in target.path:
            return [target.path]
        return []


class _Variables(Mapping[str, str]):
    """An environment in which every variable is set."""

    def __getitem__(self, name: str) -> str:
        return _PLACEHOLDER

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, name: object) -> bool:
        return True


def read_declared(file: str) -> DeclaredPipeline:
    """Raises PipelineInvalid, with all problems, and OSError."""
    with open(file, encoding="utf-8") as stream:
        text = stream.read()
    validated = validate(file, _Variables(), runs_here=False)
    if validated.pipeline is None:
        raise errors.PipelineInvalid("\n".join(problem.message for problem in validated.problems))
    names = [*_VARIABLE.findall(text), *_storage_variables(validated.pipeline)]
    return DeclaredPipeline(pipeline=validated.pipeline, file=file, text=text, variables=tuple(dict.fromkeys(names)))


def _storage_variables(pipeline: Pipeline) -> list[str]:
    """The variables with the settings of an object store."""
    target = pipeline.target
    return list(target.storage.values()) if isinstance(target, ParquetTarget | DeltaTarget) else []

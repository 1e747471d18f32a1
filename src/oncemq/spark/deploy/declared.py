"""The file of a pipeline as it is deployed: its text, and the environment variables that it needs where it runs.

The values of variables may be secrets. They are never read here: a file is checked with a placeholder for each one.
Problems of this machine, such as a folder that is not writable, do not matter where the pipeline will run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

import msgspec

from oncemq.config.contexts import check_name
from oncemq.protocol import errors
from oncemq.spark.pipeline.model import Pipeline
from oncemq.spark.pipeline.pipeline_file import validate
from oncemq.spark.pipeline.schema_file import SCHEMA_FILE
from oncemq.spark.pipeline.yaml_tree import Node
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget, PostgresTarget

#: Where the URL of a database has a password.
_PASSWORDS = (re.compile(r"://[^/?#@]*?:(.+)@"), re.compile(r"[?&\s]password=([^&\s]+)"))
#: Stands for the value of a variable. It is accepted as a name, a folder and the URL of a database.
_PLACEHOLDER = "postgresql://placeholder"


class DeclaredPipeline(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: Pipeline
    #: As it was given, and its text.
    file: str
    text: str
    #: The environment variables that the file names, in their order.
    variables: tuple[str, ...]
    #: Files with definitions of values, relative to the folder of the file.
    schema_files: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return os.path.basename(self.file)

    @property
    def attachments(self) -> tuple[str, ...]:
        """Other files that the pipeline needs, relative to the folder of the file: a Python module, definitions."""
        return (*self._modules, *self.schema_files)

    def path_of(self, attachment: str) -> str:
        return os.path.join(os.path.dirname(self.file), attachment)

    @property
    def _modules(self) -> tuple[str, ...]:
        transform = self.pipeline.transform
        if transform is None or not transform.python:
            return ()
        name = transform.python.partition(":")[0].replace(".", "/") + ".py"
        return (name,) if os.path.exists(self.path_of(name)) else ()

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

    @property
    def local_tables(self) -> list[str]:
        """Files and folders of this machine that are joined with the streams."""
        paths = [each.parquet or each.csv or each.delta for each in self.pipeline.tables.values()]
        return [path for path in paths if path and "://" not in path]

    @property
    def has_password(self) -> bool:
        """Whether the text contains a password, and not a variable for it."""
        target = self.pipeline.target
        if not isinstance(target, PostgresTarget):
            return False
        found = [match[1] for each in _PASSWORDS if (match := each.search(target.url))]
        return any(_PLACEHOLDER not in password for password in found)


def check_broker(url: str, context: str) -> None:
    """Raise SettingInvalid unless a deployment can name its broker in this way."""
    if url and context:
        raise errors.SettingInvalid("give either --url or --context: a context has an address of its own")
    if context:
        check_name(context)


class _Variables(Mapping[str, str]):
    """An environment in which every variable is set, and which remembers those that were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.asked.append(name)
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
    variables = _Variables()
    validated = validate(file, variables, runs_here=False)
    if validated.pipeline is None:
        raise errors.PipelineInvalid("\n".join(problem.message for problem in validated.problems))
    assert validated.document.root is not None
    return DeclaredPipeline(
        pipeline=validated.pipeline,
        file=file,
        text=text,
        variables=tuple(dict.fromkeys([*variables.asked, *_storage_variables(validated.pipeline)])),
        schema_files=tuple(dict.fromkeys(_schema_files(validated.document.root))),
    )


def _schema_files(node: Node) -> Iterator[str]:
    """The files that the sections `value` name."""
    if node.kind != "map":
        return
    for key, inner in node.value.items():
        if key == "value" and inner.kind == "map" and SCHEMA_FILE in inner.value:
            yield os.path.normpath(inner.value[SCHEMA_FILE].value)
        else:
            yield from _schema_files(inner)


def _storage_variables(pipeline: Pipeline) -> list[str]:
    """The variables with the settings of an object store."""
    target = pipeline.target
    return list(target.storage.values()) if isinstance(target, ParquetTarget | DeltaTarget) else []

"""The key `schema_file` of a section `value`: a definition in a file of its own."""

from __future__ import annotations

import os
from typing import Any

from oncemq.spark.pipeline.node_reader import NodeReader
from oncemq.spark.pipeline.problems import Path

SCHEMA_FILE = "schema_file"
#: Replaces a file whose problem was reported, so that it is not reported twice.
UNREADABLE = "\0"


def read_schema_file(reader: NodeReader, found: dict[str, Any], path: Path, folder: str) -> None:
    """Replace the name of the file by its content, as `schema`. The name is relative to `folder`."""
    name = found.pop(SCHEMA_FILE, None)
    if name is None:
        return
    if "schema" in found:
        reader.add_problem((*path, SCHEMA_FILE), "there are both a schema and a schema_file", "remove one of them")
        return
    found["schema"] = UNREADABLE
    try:
        with open(os.path.join(folder, os.path.expanduser(name)), encoding="utf-8") as file:
            found["schema"] = file.read()
    except OSError as error:
        advice = "the name is relative to the folder of the pipeline's file"
        reader.add_problem((*path, SCHEMA_FILE), f"{name} can't be read: {error.strerror}", advice)
    except UnicodeDecodeError:
        advice = "name the text of the definition, such as the .proto file itself"
        reader.add_problem((*path, SCHEMA_FILE), f"{name} is not text", advice)

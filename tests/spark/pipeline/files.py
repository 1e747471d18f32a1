"""Files of pipelines for tests, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

from oncemq.spark.pipeline.pipeline_file import validate

GOOD = """\
name: totals
source:
  topic: orders
value:
  format: json
  schema: id bigint, price double
transform:
  sql: SELECT id, price FROM messages
target:
  topic: totals
"""


def changed(*changes: tuple[str, str]) -> str:
    """The good file, with some of its text replaced."""
    text = GOOD
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def problems_in(folder: Path, text: str, **environment: str) -> list[str]:
    """Each as `LINE:COLUMN: what; what to do`."""
    file = folder / "pipeline.yaml"
    file.write_text(text, encoding="utf-8")
    found = validate(str(file), environment).problems
    return [problem.message.removeprefix(f"{file}:") for problem in found]

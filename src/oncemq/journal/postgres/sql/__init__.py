"""The SQL of the PostgreSQL journal: schema.sql and tables.sql create it, queries.sql holds all queries by name."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import LiteralString

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def script(name: str) -> LiteralString:
    """Return the content of a file."""
    return resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


@cache
def _queries() -> dict[str, LiteralString]:
    _, *parts = _NAME.split(script("queries"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def query(name: str) -> LiteralString:
    return _queries()[name]

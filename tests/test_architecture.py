"""ARCHITECTURE.md names files and functions that exist, and asyncio tasks are started in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "oncemq"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
#: | step | what happens | `file` | `function` |
HOPS = re.findall(r"^\| \d+ \| .* \| `([\w/]+\.py)` \| `([\w.]+)` \|$", PAGE, re.MULTILINE)
#: What paths are relative to: the package, or the sub-package that a section is about.
FOLDERS = (SOURCE, SOURCE / "engine", SOURCE / "client", SOURCE / "client/core", SOURCE / "spark", ROOT / "src", ROOT)
PATHS = sorted(set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+\.py)?)`", PAGE)))


def names_in(path: Path) -> set[str]:
    """Return the functions and classes of a module, and the methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def test_the_paths_of_a_put_and_of_a_get_are_there() -> None:
    assert len(HOPS) >= 20


@pytest.mark.parametrize(("path", "function"), HOPS)
def test_each_hop_is_in_its_file(path: str, function: str) -> None:
    assert function in names_in(SOURCE / path)


def starts_of_tasks(path: Path) -> list[int]:
    """Return the lines of a module that start asyncio tasks directly."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = ("create_task", "ensure_future", "TaskGroup")
    return [node.lineno for node in nodes if isinstance(node, ast.Attribute) and node.attr in names]


def test_every_asyncio_task_is_started_where_its_failure_is_reported() -> None:
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if starts_of_tasks(path)}
    assert found == {"gateways/tasks.py"}


@pytest.mark.parametrize("path", PATHS)
def test_each_path_exists(path: str) -> None:
    assert any((folder / path).exists() for folder in FOLDERS)

"""The engine does no I/O, reads no clock and uses no randomness: checked by its imports and calls."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import oncemq.engine

ROOT = Path(oncemq.engine.__file__).parent.parent
ALLOWED = {
    "__future__",
    "array",
    "bisect",
    "collections",
    "heapq",
    "itertools",
    "json",
    "msgspec",
    "re",
    "typing",
    "xxhash",
}


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def file_of(module: str) -> Path | None:
    parts = module.split(".")[1:]
    for path in (ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts, "__init__.py")):
        if parts and path.is_file():
            return path
    return None


def reachable() -> dict[Path, set[str]]:
    """Return every file of ours that the engine imports, with its imports."""
    seen: dict[Path, set[str]] = {}
    todo = sorted((ROOT / "engine").rglob("*.py"))
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen[path] = imports_of(path)
        todo += [found for module in seen[path] if module.startswith("oncemq.") and (found := file_of(module))]
    return seen


def test_the_engine_imports_nothing_impure() -> None:
    foreign = {
        (path.name, module)
        for path, modules in reachable().items()
        for module in modules
        if module.split(".")[0] not in ALLOWED | {"oncemq"}
    }
    assert not foreign


def test_the_engine_imports_only_the_protocol_and_the_journal_contract() -> None:
    packages = {path.relative_to(ROOT).parts[0] for path in reachable()}
    assert packages <= {"engine", "journal", "protocol"}
    assert {path.name for path in reachable() if "journal" in path.parts} <= {"__init__.py", "contract.py", "rows.py"}


def test_the_engine_calls_nothing_impure() -> None:
    banned = {"open", "print", "input", "exec", "eval", "__import__", "hash", "id"}
    for path in (ROOT / "engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in banned, f"{path}:{node.lineno} calls {node.func.id}"


def test_the_standard_library_names_are_real() -> None:
    assert ALLOWED - {"msgspec", "xxhash", "__future__"} <= set(sys.stdlib_module_names)

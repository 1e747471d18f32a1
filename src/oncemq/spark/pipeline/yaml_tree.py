"""Parses a YAML file into a tree of values, each with its line and column, and substitutes variables `${NAME}`.

This module does not know the sections of a pipeline (sections.py). Parsing continues after a problem, so that all
problems are reported at once. `$${` is an escaped `${`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import msgspec

from oncemq.protocol.errors import MissingExtra
from oncemq.spark.pipeline.problems import FileProblem, Path, Problem

#: A node of PyYAML, which is imported only when a file is read.
YamlNode = Any

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAG = "tag:yaml.org,2002:"
#: The maximum depth of nesting. No pipeline needs more, and an anchor may contain itself.
_DEPTH_MAX = 30
#: Deeper files are not composed: Python limits the depth of recursion.
_COMPOSED_DEPTH_MAX = 100
#: With aliases, a short file can expand to a very long one.
_NODES_MAX = 20_000
#: The kinds of values, as problems name them.
KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "empty",
    "timestamp": "a time",
    "map": "a mapping",
    "seq": "a list",
}


class Node(msgspec.Struct):
    """A value of the file. Lines and columns count from 1."""

    #: The type of YAML: str, int, bool, float, null, timestamp, map, seq.
    kind: str
    #: Scalars as they are written, with variables substituted; a dict by key; or a list.
    value: Any
    line: int
    column: int
    #: The position of its key.
    key_line: int = 0
    key_column: int = 0
    #: (offset in the text, line, column) for each line of a text, if known.
    lines: tuple[tuple[int, int, int], ...] = ()
    #: It contained a variable.
    is_substituted: bool = False

    def position(self, offset: int) -> tuple[int, int]:
        """The line and column of a character of this text."""
        for start, line, column in reversed(self.lines):
            if start <= offset:
                return line, column + offset - start
        return self.line, self.column


class Document:
    """A parsed file. `root` is None if it is not YAML or not a mapping."""

    def __init__(self, file: str, text: str, environment: Mapping[str, str] = os.environ) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._text = text
        self._environment = environment
        #: Problems that are found by position and have no path.
        self._syntax_problems: list[FileProblem] = []
        #: The positions of values with a variable that could not be substituted.
        self._unset: set[tuple[int, int]] = set()
        self._nodes = 0
        root = self._compose()
        self.root = self._node(root, ()) if root is not None else None

    def add_problem(
        self, path: Path, text: str, advice: str, *, offset: int | None = None, is_key: bool = False
    ) -> None:
        self.problems.append(Problem(path=path, text=text, advice=advice, offset=offset, is_key=is_key))

    def file_problems(self) -> list[FileProblem]:
        """All problems with their positions, in the order of the file."""
        found = [self._locate(problem) for problem in self.problems]
        # A problem that results from a missing variable is not reported: the variable is.
        found = [problem for problem in found if (problem.line, problem.column) not in self._unset]
        return sorted([*self._syntax_problems, *found], key=lambda problem: (problem.line, problem.column))

    def _locate(self, problem: Problem) -> FileProblem:
        line, column = self.position(problem.path, problem.offset, is_key=problem.is_key)
        return FileProblem(file=self.file, line=line, column=column, text=problem.text, advice=problem.advice)

    def position(self, path: Path, offset: int | None = None, *, is_key: bool = False) -> tuple[int, int]:
        """The line and column of a path. If the path does not exist, those of its nearest existing parent."""
        node = self.root
        if node is None:
            return 1, 1
        found = 0
        for step in path:
            inner = _inner(node, step)
            if inner is None:
                break
            node, found = inner, found + 1
        is_found = found == len(path)
        if offset is not None and node.kind == "str" and is_found != is_key:
            return node.position(offset)
        if node.key_line and (is_key or not is_found):
            return node.key_line, node.key_column
        return node.line, node.column

    def _compose(self) -> YamlNode | None:
        parser = _yaml()
        try:
            if self._is_too_deep(parser):
                return None
            documents = list(parser.compose_all(self._text, Loader=parser.SafeLoader))
        except parser.YAMLError as error:
            self._add_syntax_error(error)
            return None
        if len(documents) > 1:
            self._add_at(documents[1], "a second document begins here", "put each pipeline into a file of its own")
        if not documents or documents[0] is None:
            self._add(1, 1, "the file is empty", "declare a pipeline")
            return None
        root: YamlNode = documents[0]
        if root.id != "mapping":
            self._add_at(root, "the file is not a mapping", "begin it with `name: …`, `source: …`, `target: …`")
            return None
        return root

    def _is_too_deep(self, parser: Any) -> bool:
        """Whether the file is nested too deeply to be composed, which is recursive. Parsing is not."""
        depth = 0
        for event in parser.parse(self._text, Loader=parser.SafeLoader):
            depth += isinstance(event, parser.CollectionStartEvent) - isinstance(event, parser.CollectionEndEvent)
            if depth > _COMPOSED_DEPTH_MAX:
                self._add_at(event, "values are nested too deeply", "a pipeline needs only a few levels")
                return True
        return False

    def _add_syntax_error(self, error: Exception) -> None:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        text = f"this is not YAML: {' '.join(str(problem).split())}"
        self._add(line, column, text, "check the indentation, colons and quotes; tabs are not allowed for indentation")

    def _add_at(self, node: YamlNode, text: str, advice: str) -> None:
        self._add(node.start_mark.line + 1, node.start_mark.column + 1, text, advice)

    def _add(self, line: int, column: int, text: str, advice: str) -> None:
        self._syntax_problems.append(FileProblem(file=self.file, line=line, column=column, text=text, advice=advice))

    def _node(self, node: YamlNode, path: Path) -> Node:
        kind = node.tag.removeprefix(_TAG)
        made = Node(kind, None, node.start_mark.line + 1, node.start_mark.column + 1)
        self._nodes += 1
        if len(path) > _DEPTH_MAX or self._nodes > _NODES_MAX:
            if self._nodes <= _NODES_MAX + 1:
                self._add_at(node, "values are nested too deeply", "a pipeline needs only a few levels")
            made.kind, made.value = "null", ""
        elif node.id == "mapping":
            made.kind, made.value = "map", self._mapping(node, path)
        elif node.id == "sequence":
            made.kind, made.value = "seq", [self._node(item, (*path, at)) for at, item in enumerate(node.value)]
        else:
            self._scalar(node, made)
        return made

    def _mapping(self, node: YamlNode, path: Path) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in found:
                advice = f"keep one of them (the other is in line {found[name].key_line})"
                self._add_at(key, f"the key {name!r} is given twice", advice)
                continue
            inner = self._node(value, (*path, name))
            inner.key_line, inner.key_column = key.start_mark.line + 1, key.start_mark.column + 1
            found[name] = inner
        return found

    def _scalar(self, node: YamlNode, made: Node) -> None:
        made.value = node.value
        if "${" in node.value:
            made.value = self._substituted(node)
            made.is_substituted = True
        else:
            made.lines = tuple(_lines_of(node, self._text))

    def _substituted(self, node: YamlNode) -> str:
        def replaced(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name = match[1]
            if name is None or not _VARIABLE_NAME.fullmatch(name):
                advice = "write a variable as ${NAME}, and a plain ${ as $${"
                self._add_at(node, f"{match[0]!r} is not a variable", advice)
            elif name not in self._environment:
                advice = f"set it before the run: export {name}=…"
                self._add_at(node, f"the environment variable {name} is not set", advice)
            else:
                return self._environment[name]
            self._unset.add((node.start_mark.line + 1, node.start_mark.column + 1))
            return "unset"

        return _VARIABLE.sub(replaced, node.value)


def read(file: str, environment: Mapping[str, str] = os.environ) -> Document:
    """Read a file. Raises OSError."""
    raw = FilePath(file).read_bytes()
    return Document(file, raw.decode("utf-8", "replace"), environment)


def _inner(node: Node, step: str | int) -> Node | None:
    if isinstance(step, int):
        return node.value[step] if node.kind == "seq" and step < len(node.value) else None
    found: Node | None = node.value.get(step) if node.kind == "map" else None
    return found


def _lines_of(node: YamlNode, text: str) -> Iterator[tuple[int, int, int]]:
    """Yield (offset in the text, line, column) for each line of a text; nothing if the text is written differently from
    its value (folded lines, escapes)."""
    raw = text[node.start_mark.index : node.end_mark.index]
    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    if node.style == "|":
        yield from _block_lines(node.value, raw, line)
        return
    if node.style in ("'", '"'):
        raw, column = raw[1:-1], column + 1
    if raw == node.value:
        yield 0, line, column


def _block_lines(value: str, raw: str, line: int) -> Iterator[tuple[int, int, int]]:
    offset = 0
    for number, (written, content) in enumerate(zip(raw.split("\n")[1:], value.split("\n"), strict=False), start=1):
        if not written.endswith(content):
            return
        yield offset, line + number, len(written) - len(content) + 1
        offset += len(content) + 1


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtra('Pipelines need PyYAML: pip install "oncemq[spark]"') from None
    return yaml

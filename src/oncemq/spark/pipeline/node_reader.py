"""Reads typed values from the nodes of a YAML document. A value of another type is None, and a problem is added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from oncemq.spark.pipeline.problems import Path, nearest, path_text
from oncemq.spark.pipeline.yaml_tree import KINDS, Document, Node

_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Duration:
    """The type of a duration: text, or a number of seconds."""


class OffsetsByTopic:
    """The type of a mapping from topics to offsets, times, `earliest` or `latest`."""


class VariableNames:
    """The type of a mapping from settings to the names of environment variables that contain them."""


class NodeReader:
    """Types are str, int, bool, Duration, OffsetsByTopic, VariableNames, Literal[…] and tuple[type, ...]."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._scalars: dict[Any, Callable[[Node, Path], Any]] = {
            str: self._text,
            int: self._number,
            bool: self._switch,
            Duration: self._duration,
            OffsetsByTopic: self._offsets,
            VariableNames: self._variables,
        }

    def add_problem(
        self, path: Path, text: str, advice: str, *, offset: int | None = None, is_key: bool = False
    ) -> None:
        self._document.add_problem(path, text, advice, offset=offset, is_key=is_key)

    def check_keys(
        self, node: Node, known: Iterable[str], path: Path, *, advice: Mapping[str, str] | None = None
    ) -> None:
        """Add a problem for each unknown key of a mapping. `advice`: what to do instead, for keys with a meaning."""
        known = list(known)
        for key in node.value:
            if key not in known:
                where = path_text(path) or "a pipeline"
                what_to_do = (advice or {}).get(key) or nearest(
                    key, known, f"the keys of {where} are {', '.join(known)}"
                )
                self.add_problem((*path, key), f"{where} has no key {key!r}", what_to_do, is_key=True)

    def fields(
        self,
        node: Node | None,
        types: Mapping[str, Any],
        path: Path,
        *,
        required: Iterable[str] = (),
        also_known: Iterable[str] = (),
    ) -> dict[str, Any] | None:
        """The readable values of a mapping by key; None if there is no mapping. A type None means: do not read it."""
        if node is None or not self.is_mapping(node, path):
            return None
        self.check_keys(node, [*types, *also_known], path)
        for key in required:
            if key not in node.value:
                self.add_problem(path, f"{path_text(path)} has no {key!r}", f"add `{key}: …`")
        found = {
            key: self.value(inner, types[key], (*path, key))
            for key, inner in node.value.items()
            if types.get(key) is not None
        }
        return {key: value for key, value in found.items() if value is not None}

    def is_mapping(self, node: Node, path: Path) -> bool:
        if node.kind != "map":
            text = f"{path_text(path)} is {KINDS.get(node.kind, node.kind)}, but must be a mapping"
            self.add_problem(path, text, "write its keys below it, indented")
        return node.kind == "map"

    def value(self, node: Node | None, kind: Any, path: Path) -> Any:
        """A value of a type; None if there is none, or if it has another type."""
        if node is None:
            return None
        if get_origin(kind) is tuple:
            return self._list(node, get_args(kind)[0], path)
        if get_origin(kind) is Literal:
            return self._choice(node, get_args(kind), path)
        return self._scalars[kind](node, path)

    def refuse(self, node: Node, path: Path, needed: str, advice: str) -> None:
        """Add the problem that a value is not what is needed."""
        is_text = node.kind == "str" and needed != "text"
        what = shown(node) if is_text or node.kind == "int" else KINDS.get(node.kind, node.kind)
        self.add_problem(path, f"{path_text(path)} is {what}, but must be {needed}", advice)

    def _text(self, node: Node, path: Path) -> str | None:
        # YAML parses a time without quotes as a time; here it is text.
        if node.kind in ("str", "timestamp"):
            return str(node.value)
        if node.kind in ("map", "seq", "null"):
            self.refuse(node, path, "text", "write text after the colon")
        else:
            self.refuse(node, path, "text", f'put it in quotes: "{node.value}"')
        return None

    def _duration(self, node: Node, path: Path) -> str | None:
        return str(node.value) if node.kind in ("int", "float") else self._text(node, path)

    def _number(self, node: Node, path: Path) -> int | None:
        text = str(node.value).replace("_", "")
        if (node.kind == "int" or node.is_substituted) and text.isdecimal() and text.isascii() and int(text) > 0:
            return int(text)
        self.refuse(node, path, "a whole number above 0", "write one, such as 1000, without quotes")
        return None

    def _offsets(self, node: Node, path: Path) -> dict[str, int | str]:
        return {name: self._offset(inner, (*path, name)) for name, inner in node.value.items()}

    def _offset(self, node: Node, path: Path) -> int | str:
        text = str(node.value)
        if node.kind == "int" and text.isdecimal():
            return int(text)
        if node.kind in ("str", "timestamp"):
            return text
        self.refuse(node, path, "an offset, earliest, latest or a time", "write one of them")
        return "earliest"

    def _variables(self, node: Node, path: Path) -> dict[str, str]:
        if not self.is_mapping(node, path):
            return {}
        found = {name: self._variable(inner, (*path, name)) for name, inner in node.value.items()}
        return {name: variable for name, variable in found.items() if variable}

    def _variable(self, node: Node, path: Path) -> str:
        if node.kind == "str" and node.value.isidentifier() and not node.is_substituted:
            return str(node.value)
        # The value may be a secret.
        text = f"{path_text(path)} is not the name of an environment variable"
        self.add_problem(path, text, "write the name of the variable that contains it, without ${…}")
        return ""

    def _switch(self, node: Node, path: Path) -> bool | None:
        word = str(node.value).lower()
        if (node.kind == "bool" or node.is_substituted) and word in _SWITCHES:
            return _SWITCHES[word]
        self.refuse(node, path, "true or false", "write one of them, without quotes")
        return None

    def _choice(self, node: Node, words: tuple[str, ...], path: Path) -> str | None:
        if node.kind == "str" and node.value in words:
            return str(node.value)
        text = f"{path_text(path)} can't be {shown(node)}"
        self.add_problem(path, text, nearest(str(node.value), words, f"write {' or '.join(words)}"))
        return None

    def _list(self, node: Node, kind: Any, path: Path) -> tuple[str, ...] | None:
        if node.kind != "seq":
            self.refuse(node, path, "a list", "write it as [one, two]")
            return None
        found = (self.value(inner, kind, (*path, at)) for at, inner in enumerate(node.value))
        return tuple(text for text in found if text is not None)


def shown(node: Node) -> str:
    """A value as problems show it."""
    return repr(node.value) if isinstance(node.value, str) and node.value else KINDS.get(node.kind, node.kind)

"""Problems of a pipeline: what is wrong, what to do, and where it is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

#: Keys and list indexes from the top of the file, such as ("source", "topics", 1).
Path = tuple[str | int, ...]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a pipeline from a file or from Python."""

    path: Path
    text: str
    advice: str
    #: The index of the character in the text at the path.
    offset: int | None = None
    #: The key is wrong, not its value.
    is_key: bool = False
    #: Something is missing. It may also be present and unreadable, which is another problem.
    is_missing: bool = False
    #: It is a problem of this machine. The pipeline may run on another one, which does not have it.
    is_local: bool = False

    @property
    def message(self) -> str:
        return f"{self.text}; {self.advice}"


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with its position in a file. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    text: str
    advice: str

    @property
    def message(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}; {self.advice}"


def problem(path: Path, text: str, advice: str, offset: int | None = None) -> Problem:
    """A problem with the value at a path."""
    return Problem(path=path, text=text, advice=advice, offset=offset)


def local_problem(path: Path, text: str, advice: str) -> Problem:
    """A problem of this machine with the value at a path."""
    return Problem(path=path, text=text, advice=advice, is_local=True)


def path_text(path: Path) -> str:
    """
    >>> path_text(("source", "topics", 1))
    'source.topics[1]'
    """
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def nearest(word: str, words: Iterable[str], otherwise: str) -> str:
    """
    >>> nearest("topik", ["topic", "start"], "look it up")
    'did you mean topic?'
    """
    close = difflib.get_close_matches(word, list(words), n=1)
    return f"did you mean {close[0]}?" if close else otherwise

"""What is wrong with a pipeline: what, what to do, and where."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

#: Keys and numbers from the top of the file, as ("source", "topics", 1).
Path = tuple[str | int, ...]


class Mistake(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with a pipeline, wherever the pipeline comes from."""

    path: Path
    text: str
    advice: str
    #: In the text that stands at the path: where in it.
    offset: int | None = None
    #: It is the key that is wrong, not its value.
    is_key: bool = False
    #: Something is not there. Perhaps it is, and could not be read.
    is_missing: bool = False

    @property
    def sentence(self) -> str:
        return f"{self.text}; {self.advice}"


class PlacedMistake(msgspec.Struct, frozen=True, kw_only=True):
    """A mistake of a file. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    text: str
    advice: str

    @property
    def sentence(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}; {self.advice}"


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

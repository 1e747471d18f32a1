"""Parsing and completion of command lines. This module knows neither brokers nor terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Verb → (its arguments, its description).
VERBS = {
    "put": ("TOPIC MESSAGE", "store a message; `publish` is the same"),
    "sub": ("TOPIC", "subscribe: messages appear as they arrive, as `topic: message`"),
    "unsub": ("TOPIC", "delete a subscription"),
    "get": ("TOPIC", "show the next message of a subscription that is not shown automatically"),
    "create": ("TOPIC", "create a permanent topic"),
    "list": ("topics|subs", "list the topics, or your subscriptions"),
    "help": ("", "show this text"),
    "quit": ("", "leave the shell, as Ctrl-D does"),
}
ALIASES = {"publish": "put"}
LISTS = ("topics", "subs")
_QUOTES = "\"'"
_WITH_TOPIC = ("put", "publish", "sub", "unsub", "get")


class SyntaxProblem(Exception):
    """A line that is not a command. The text says why."""

    exit_code = 2


class Line(NamedTuple):
    """A parsed line."""

    verb: str
    #: "" if there is none.
    topic: str = ""
    message: str | None = None


def parse(text: str) -> Line | None:
    """Parse a line; None if it is empty. Raises SyntaxProblem."""
    verb, rest = take_word(text)
    if not verb:
        return None
    verb = ALIASES.get(verb, verb)
    if verb not in VERBS:
        raise SyntaxProblem(f"{verb!r} is not a command; `help` lists them")
    arguments = VERBS[verb][0]
    if verb == "list":
        what, rest = take_word(rest)
        if (what or "topics") not in LISTS:
            raise SyntaxProblem(f"{what!r} can't be listed: use `list topics` or `list subs`")
        return _without_rest(Line(verb, what or "topics"), rest, "list topics")
    if not arguments:
        return _without_rest(Line(verb), rest, verb)
    topic, rest = take_word(rest)
    if not topic:
        raise SyntaxProblem(f"an argument is missing: {verb} {arguments}")
    if verb != "put":
        return _without_rest(Line(verb, topic), rest, f"{verb} {arguments}")
    if not rest:
        raise SyntaxProblem(f"the message is missing: {verb} {arguments}")
    return Line(verb, topic, message_of(rest))


def _without_rest(line: Line, rest: str, usage: str) -> Line:
    if rest:
        raise SyntaxProblem(f'unexpected {rest!r}: {usage}; quote names with spaces, such as "Cooking Recipes"')
    return line


def take_word(text: str) -> tuple[str, str]:
    """Return the first word, which may be quoted, and the rest. Raises SyntaxProblem.

    >>> take_word('"Cooking Recipes" one  pizza')
    ('Cooking Recipes', 'one  pizza')
    """
    text = text.strip()
    if not text or text[0] not in _QUOTES:
        word, *rest = text.split(None, 1) or [""]
        return word, rest[0] if rest else ""
    end = text.find(text[0], 1)
    if end < 0:
        raise SyntaxProblem(f"the closing quote is missing in {text!r}")
    if text[end + 1 :][:1].strip():
        raise SyntaxProblem(f"a space is missing after {text[: end + 1]}")
    return text[1:end], text[end + 1 :].strip()


def message_of(rest: str) -> str:
    """Return the message: the rest of a line, without quotes around all of it.

    >>> message_of('"two salads"'), message_of('say "cheese"')
    ('two salads', 'say "cheese"')
    """
    is_quoted = len(rest) > 1 and rest[0] in _QUOTES and rest.find(rest[0], 1) == len(rest) - 1
    return rest[1:-1] if is_quoted else rest


def quoted(word: str) -> str:
    """Return a word as it has to be typed."""
    if word and not any(letter.isspace() for letter in word) and word[0] not in _QUOTES:
        return word
    return f"'{word}'" if '"' in word else f'"{word}"'


class Completion(NamedTuple):
    """A possible completion."""

    text: str
    #: Number of letters before the cursor that it replaces.
    replaces: int
    help: str = ""


def complete(before: str, topics: Callable[[], Sequence[str]]) -> list[Completion]:
    """Return what may stand at the cursor. `topics` is called only if it is needed."""
    before = before.lstrip()
    verb, space, rest = before.partition(" ")
    if not space:
        return [Completion(name, len(verb), VERBS[name][1]) for name in VERBS if name.startswith(verb)]
    rest = rest.lstrip()
    if verb == "list":
        return [Completion(name, len(rest)) for name in LISTS if name.startswith(rest)]
    if verb not in _WITH_TOPIC:
        return []
    begun = rest[1:] if rest[:1] in _QUOTES and rest else rest
    if rest[:1] not in _QUOTES and " " in rest:
        return []
    return [Completion(quoted(name), len(rest)) for name in topics() if name.startswith(begun)]

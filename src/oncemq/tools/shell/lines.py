"""What was typed: words, quotes, and what may come next. Knows neither brokers nor terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Verb → (what it wants, what it does).
VERBS = {
    "put": ("TOPIC MESSAGE", "store a message; `publish` is the same"),
    "sub": ("TOPIC", "subscribe: messages appear as they come, as `topic: message`"),
    "unsub": ("TOPIC", "end a subscription"),
    "get": ("TOPIC", "the next message of a subscription that is not shown as it comes"),
    "create": ("TOPIC", "make a topic that stays"),
    "list": ("topics|subs", "the topics, or your subscriptions"),
    "help": ("", "this text"),
    "quit": ("", "leave; so does Ctrl-D"),
}
ALIASES = {"publish": "put"}
LISTS = ("topics", "subs")
_QUOTES = "\"'"
_WITH_TOPIC = ("put", "publish", "sub", "unsub", "get")


class Misunderstood(Exception):
    """A line that is no command. Its text says why."""

    exit_code = 2


class Line(NamedTuple):
    verb: str
    #: "" where there is none.
    topic: str = ""
    message: str | None = None


def parse(text: str) -> Line | None:
    """None: there is nothing. Raises Misunderstood."""
    verb, rest = take_word(text)
    if not verb:
        return None
    verb = ALIASES.get(verb, verb)
    if verb not in VERBS:
        raise Misunderstood(f"{verb!r} is not a command; `help` lists them")
    wants = VERBS[verb][0]
    if verb == "list":
        what, rest = take_word(rest)
        if (what or "topics") not in LISTS:
            raise Misunderstood(f"there is no list of {what!r}: `list topics`, `list subs`")
        return _nothing_more(Line(verb, what or "topics"), rest, "list topics")
    if not wants:
        return _nothing_more(Line(verb), rest, verb)
    topic, rest = take_word(rest)
    if not topic:
        raise Misunderstood(f"something is missing: {verb} {wants}")
    if verb != "put":
        return _nothing_more(Line(verb, topic), rest, f"{verb} {wants}")
    if not rest:
        raise Misunderstood(f"the message is missing: {verb} {wants}")
    return Line(verb, topic, message_of(rest))


def _nothing_more(line: Line, rest: str, usage: str) -> Line:
    if rest:
        raise Misunderstood(f'{rest!r} is too much: {usage}; quote what has spaces, as "Cooking Recipes"')
    return line


def take_word(text: str) -> tuple[str, str]:
    """The first word, which may be in quotes, and what comes after it. Raises Misunderstood.

    >>> take_word('"Cooking Recipes" one  pizza')
    ('Cooking Recipes', 'one  pizza')
    """
    text = text.strip()
    if not text or text[0] not in _QUOTES:
        word, *rest = text.split(None, 1) or [""]
        return word, rest[0] if rest else ""
    end = text.find(text[0], 1)
    if end < 0:
        raise Misunderstood(f"the quote in {text!r} does not end")
    if text[end + 1 :][:1].strip():
        raise Misunderstood(f"a space is missing after {text[: end + 1]}")
    return text[1:end], text[end + 1 :].strip()


def message_of(rest: str) -> str:
    """The rest of a line is the message; quotes around all of it are taken off.

    >>> message_of('"two salads"'), message_of('say "cheese"')
    ('two salads', 'say "cheese"')
    """
    is_quoted = len(rest) > 1 and rest[0] in _QUOTES and rest.find(rest[0], 1) == len(rest) - 1
    return rest[1:-1] if is_quoted else rest


def quoted(word: str) -> str:
    """As it has to be typed."""
    if word and not any(letter.isspace() for letter in word) and word[0] not in _QUOTES:
        return word
    return f"'{word}'" if '"' in word else f'"{word}"'


class Completed(NamedTuple):
    text: str
    #: Letters before the cursor that it replaces.
    replaces: int
    help: str = ""


def complete(before: str, topics: Callable[[], Sequence[str]]) -> list[Completed]:
    """What may stand at the cursor. `topics` is asked only if it matters."""
    before = before.lstrip()
    verb, space, rest = before.partition(" ")
    if not space:
        return [Completed(name, len(verb), VERBS[name][1]) for name in VERBS if name.startswith(verb)]
    rest = rest.lstrip()
    if verb == "list":
        return [Completed(name, len(rest)) for name in LISTS if name.startswith(rest)]
    if verb not in _WITH_TOPIC:
        return []
    begun = rest[1:] if rest[:1] in _QUOTES and rest else rest
    if rest[:1] not in _QUOTES and " " in rest:
        return []
    return [Completed(quoted(name), len(rest)) for name in topics() if name.startswith(begun)]

"""Which topics a read includes: names, a pattern of the broker, or a regular expression."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.patterns import matcher, refuse_pattern
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.source.offset_spec import parse_json

SELECTING = ("topic", "topics", "pattern", "regex", "assign")


class TopicSelection(msgspec.Struct, frozen=True):
    """One of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    regex: str = ""

    def matcher(self) -> Callable[[str], object]:
        """Return a function whose result is true for the topics that are read."""
        if self.pattern:
            return matcher(self.pattern)
        if self.regex:
            return re.compile(self.regex, re.DOTALL).fullmatch
        return frozenset(self.topics).__contains__

    def __str__(self) -> str:
        if self.pattern:
            return f"pattern {self.pattern}"
        if self.regex:
            return f"regex {self.regex}"
        return f"{'topic' if len(self.topics) == 1 else 'topics'} {', '.join(self.topics)}"


def parse_selection(options: RawOptions) -> TopicSelection:
    """Raises SettingInvalid unless exactly one of the options names topics."""
    given = [name for name in SELECTING if options.text(name)]
    if len(given) != 1:
        what = " and ".join(f"'{name}'" for name in given) + " are given" if given else "none of them is given"
        names = ", ".join(f"'{name}'" for name in SELECTING)
        raise errors.SettingInvalid(f"exactly one of the options {names} is needed; {what}")
    (kind,) = given
    if kind == "pattern":
        return TopicSelection(pattern=_checked_pattern(options.text(kind)))
    if kind == "regex":
        return TopicSelection(regex=_checked_regex(options.text(kind)))
    if kind == "assign":
        return TopicSelection(_assigned(options.text(kind)))
    names_given = options.names(kind) if kind == "topics" else [options.text(kind)]
    return TopicSelection(tuple(dict.fromkeys(names_given)))


def _checked_pattern(text: str) -> str:
    refusal = refuse_pattern(text)
    if refusal is not None:
        raise errors.SettingInvalid(f"'pattern': {refusal.text}")
    return text


def _checked_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise errors.SettingInvalid(f"'regex' is not a valid regular expression: {error}") from None
    return text


def _assigned(text: str) -> tuple[str, ...]:
    """The topics of `{"orders": [0], …}`: the form of Spark's Kafka source, where topics have partitions."""
    assigned = parse_json(text, "assign")
    if not isinstance(assigned, dict) or not assigned:
        raise errors.SettingInvalid(f"'assign' must be a JSON object by topic, as in {{\"orders\": [0]}}, not {text!r}")
    for topic, partitions in assigned.items():
        if partitions != [0]:
            raise errors.SettingInvalid(
                f"'assign': a topic has one partition, 0, which is written [0]; topic '{topic}' is given {partitions}. "
                "For ranges of offsets, use 'startingOffsets' and 'endingOffsets'"
            )
    return tuple(assigned)

"""Patterns of topic names.

The levels of a name are separated by dots. In a pattern, `*` matches one level and `#` matches zero or more levels.
Each must be a whole level: `orders.*` and `#.eu` are valid, `ord*` is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from oncemq.protocol.names import refuse_name
from oncemq.protocol.replies import Refusal

#: In one pattern: each makes the comparison with a name take longer.
HASHES_MAX = 4


def is_pattern(name: str) -> bool:
    return "*" in name or "#" in name


def refuse_pattern(pattern: str) -> Refusal | None:
    refusal = refuse_name(pattern, "pattern")
    if refusal is not None:
        return refusal
    levels = pattern.split(".")
    if levels.count("#") > HASHES_MAX:
        return Refusal("NAME_INVALID", f"'{pattern}' is not valid: a pattern has at most {HASHES_MAX} '#'")
    for level in levels:
        if is_pattern(level) and len(level) > 1:
            return Refusal("NAME_INVALID", f"'{level}' in '{pattern}' is not valid: '*' and '#' must be whole levels")
    return None


def matcher(pattern: str) -> Callable[[str], object]:
    """Return a function whose result is true for the topic names that the pattern matches."""
    levels = pattern.split(".")
    if levels.count("#") > 1:
        return lambda name: matches(levels, name)
    if pattern == "#":
        return lambda _name: True
    return re.compile(_expression(levels), re.DOTALL).fullmatch


def _expression(levels: Sequence[str]) -> str:
    """Return the regular expression of a pattern with at most one `#`. With several, its time could be quadratic."""
    parts = ["[^.]*" if level == "*" else re.escape(level) for level in levels]
    if "#" not in levels:
        return r"\.".join(parts)
    at = levels.index("#")
    before, after = parts[:at], parts[at + 1 :]
    if after:
        return "".join(part + r"\." for part in before) + r"(?:.*\.)?" + r"\.".join(after)
    return r"\.".join(before) + r"(?:\..*)?"


def matches(levels: Sequence[str], name: str) -> bool:
    """Return whether the levels of a pattern match a topic's name."""
    # The set of pattern prefixes that match the levels read so far. This never backtracks, whatever the pattern.
    reached = _past_hashes(levels, {0})
    for part in name.split("."):
        following = set()
        for at in reached:
            if at < len(levels):
                if levels[at] == "#":
                    following.add(at)
                elif levels[at] in ("*", part):
                    following.add(at + 1)
        if not following:
            return False
        reached = _past_hashes(levels, following)
    return len(levels) in reached


def covers(levels: Sequence[str], pattern: str) -> bool:
    """Return whether the levels of a pattern match every name that another pattern matches. False may be wrong in rare
    cases (`*.#` and `#.a`), True never is.

    >>> covers(["orders", "#"], "orders.*.eu"), covers(["orders", "*"], "orders.#")
    (True, False)
    """
    # The levels of the other pattern are read like those of a name. Its `#` can only be part of a `#`.
    reached = _past_hashes(levels, {0})
    for part in pattern.split("."):
        following = set()
        for at in reached:
            if at < len(levels):
                if levels[at] == "#":
                    following.add(at)
                elif levels[at] == part or (levels[at] == "*" and part != "#"):
                    following.add(at + 1)
        if not following:
            return False
        reached = _past_hashes(levels, following)
    return len(levels) in reached


def _past_hashes(levels: Sequence[str], reached: set[int]) -> set[int]:
    found = set(reached)
    for at in reached:
        while at < len(levels) and levels[at] == "#" and at + 1 not in found:
            at += 1
            found.add(at)
    return found

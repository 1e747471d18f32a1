"""Validation of names."""

from __future__ import annotations

import re

from oncemq.protocol.limits import KEY_BYTES_MAX, NAME_BYTES_MAX
from oncemq.protocol.replies import Refusal

#: The subscription that keeps dead letters.
DEAD_SUBSCRIBER = "oncemq-dead"

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_PATTERN = re.compile("[*#]")


def refuse_name(name: str, what: str, bytes_max: int = NAME_BYTES_MAX) -> Refusal | None:
    """Return a refusal if a name of a subscriber, session or other entity is not valid. `what` describes the name."""
    size = len(name.encode())
    if not 1 <= size <= bytes_max:
        return Refusal("NAME_INVALID", f"a {what} must have 1 to {bytes_max} bytes of UTF-8; this one has {size}")
    if _CONTROL.search(name):
        return Refusal("NAME_INVALID", f"a {what} must not contain control characters")
    return None


def refuse_topic_name(name: str) -> Refusal | None:
    if _PATTERN.search(name):
        return Refusal("NAME_INVALID", "a topic's name must not contain '*' or '#': they are reserved for patterns")
    return refuse_name(name, "topic's name")


def refuse_key(key: str) -> Refusal | None:
    return refuse_name(key, "key", KEY_BYTES_MAX)

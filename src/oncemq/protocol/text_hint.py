"""The reply to a request of the text protocol that was sent to the broker itself instead of its text listener.

    request     [operation SP …] or [id LF operation LF …]      sub, unsub, get, put (docs/howto/text.md)
                a REQ socket sends an empty frame before it

A native request never looks like this: its header is msgpack, and starts with a byte that is not ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HINT = (
    "ERROR MALFORMED this is the broker's native listener, which does not understand text; text requests go to the "
    "text listener: start the broker with --text (tcp://127.0.0.1:5556 by default), and connect there"
)
_TEXT = re.compile(rb"(?:[!-~]{1,255}\r?\n)?(?:sub|unsub|get|put)(?:\s|\Z)")


def hint_for_text(frames: Sequence[bytes | memoryview]) -> list[bytes | memoryview] | None:
    """Return the reply to a text request; None if it is none."""
    envelope = [frame for frame in frames[:1] if not len(frame)]
    body = frames[len(envelope) :]
    if len(body) != 1 or not _TEXT.match(body[0]):
        return None
    return [*envelope, HINT.encode()]

"""Who uses an object that is for one caller at a time: a thread, or a task of an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple


class Caller(NamedTuple):
    """How callers are told apart."""

    #: "thread" or "task", for error texts.
    kind: str
    #: Returns who is calling.
    identify: Callable[[], int]


THREAD = Caller("thread", threading.get_ident)

"""The counters of the push gateway."""

from __future__ import annotations

import logging

from oncemq.net import counters

log = logging.getLogger("oncemq.push")


class Counters(counters.Counters):
    def __init__(self) -> None:
        super().__init__(log)

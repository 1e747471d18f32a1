"""Settings of the text gateway."""

from __future__ import annotations

from oncemq.config.gateways import TextOptions


class TextSettings(TextOptions, frozen=True, kw_only=True):
    #: Where clients connect their REQ or DEALER sockets.
    listen: str = "tcp://127.0.0.1:5556"

"""Settings of the text gateway."""

from __future__ import annotations

from oncemq.client.gateway_api import NO_CREDENTIALS, Credentials
from oncemq.config.gateways import TextOptions
from oncemq.net.curve import CurveServerKeys


class TextSettings(TextOptions, frozen=True, kw_only=True):
    #: Of the gateway itself, for the broker.
    credentials: Credentials = NO_CREDENTIALS
    #: The keys of its socket. None: it is not encrypted, and if the broker has users, it allows nothing.
    curve: CurveServerKeys | None = None
    #: Where clients connect their REQ or DEALER sockets.
    listen: str = "tcp://127.0.0.1:5556"

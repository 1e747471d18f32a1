"""A push gateway in a process of its own, which can be killed and started again at the same addresses."""

from __future__ import annotations

import msgspec

from oncemq.gateways.push.gateway import PushGateway
from oncemq.gateways.push.settings import PushSettings
from oncemq.testing.broker_process import free_url
from tests.gateways.hosts import ProcessHost


def settings_here(**changes: object) -> PushSettings:
    """Settings with free addresses and short times."""
    quick = PushSettings(
        publish=free_url("zeromq"),
        feed=free_url("zeromq"),
        acks=free_url("zeromq"),
        heartbeat_ms=200,
        retransmit_ms=300,
        unfollow_ms=500,
        answer_ms=1000,
        pause_ms_max=1000,
    )
    return msgspec.structs.replace(quick, **changes)


class GatewayProcess(ProcessHost):
    def __init__(self, broker_url: str, settings: PushSettings | None = None) -> None:
        self.settings = settings or settings_here()
        super().__init__(PushGateway, broker_url, self.settings)

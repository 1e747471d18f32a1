"""A push gateway in a process of its own, which can be killed, and started again at the same addresses."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import msgspec

from oncemq.gateways.push.gateway import PushGateway
from oncemq.gateways.push.settings import PushSettings
from oncemq.server.gateway_process import run
from oncemq.testing.broker_process import free_url

_START_S = 30.0
_server = multiprocessing.get_context("forkserver")


def settings_here(**changes: object) -> PushSettings:
    """Free addresses, and quicker than usual."""
    quick = PushSettings(
        publish=free_url(),
        feed=free_url(),
        acks=free_url(),
        heartbeat_ms=200,
        retransmit_ms=300,
        unfollow_ms=500,
        answer_ms=1000,
        pause_ms_max=1000,
    )
    return msgspec.structs.replace(quick, **changes)


class GatewayProcess:
    def __init__(self, broker_url: str, settings: PushSettings | None = None) -> None:
        self.settings = settings or settings_here()
        self._broker_url = broker_url
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self) -> None:
        ours, theirs = _server.Pipe()
        arguments = (self._broker_url, msgspec.json.encode(self.settings), theirs)
        self._process = _server.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        assert ours.poll(_START_S), "the gateway does not start"
        ours.recv()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def stop(self) -> int | None:
        assert self._process is not None
        process, self._process = self._process, None
        process.terminate()
        process.join(_START_S)
        return process.exitcode

    def restart(self) -> None:
        self.kill()
        self.start()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()


def _serve(broker_url: str, settings: bytes, parent: Connection) -> None:
    run([PushGateway(broker_url, msgspec.json.decode(settings, type=PushSettings))], parent.send)

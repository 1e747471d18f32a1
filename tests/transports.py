"""Tests that run with each transport."""

from __future__ import annotations

import pytest

from oncemq.testing.broker_process import BrokerProcess, Transport

TRANSPORTS: tuple[Transport, ...] = ("stream", "zeromq")

#: For tests whose broker is that of the fixture `oncemq_broker` or `broker_process`.
EACH_TRANSPORT = pytest.mark.parametrize("oncemq_broker", TRANSPORTS, indirect=True)
EACH_TRANSPORT_OF_PROCESS = pytest.mark.parametrize("broker_process", TRANSPORTS, indirect=True)


def transport_of(broker: BrokerProcess) -> Transport:
    return "zeromq" if broker.url.startswith("tcp:") else "stream"

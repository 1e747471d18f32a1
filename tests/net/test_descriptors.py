"""Many connections neither exhaust the descriptors of the broker nor end it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from oncemq.testing.broker_process import BrokerProcess, Transport
from tests.stream_peer import connected
from tests.transports import TRANSPORTS

_LIMIT = 200
_FLAGS = ("--segment-bytes=1MiB", "--batch-bytes-max=512KiB")
_LIMITED = f"import os,resource,sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({_LIMIT // 2}, {_LIMIT}))"


def limited() -> list[str]:
    """What starts a command with few descriptors."""
    return [sys.executable, "-c", f"{_LIMITED}; os.execv(sys.argv[1], sys.argv[1:])"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_connections_beyond_the_descriptors_are_refused_and_the_broker_goes_on(
    tmp_path: Path, transport: Transport
) -> None:
    broker = BrokerProcess(tmp_path / "data", *_FLAGS, transport=transport)
    broker.start(limited())
    try:
        with broker.connect() as client, contextlib.ExitStack() as stack:
            client.create_topic("orders")
            client.subscribe("orders", "me")
            for _ in range(2 * _LIMIT):
                # A refused connection may be closed while it is made.
                with contextlib.suppress(OSError):
                    stack.enter_context(connected(broker.url))
            # Each of these needs new segments, which are new files.
            for _ in range(12):
                client.put("orders", b"x" * 400_000)
            counters = client.health().counters
            assert counters["connections_refused"] >= _LIMIT // 2
            used = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
            assert _LIMIT // 2 < used < _LIMIT, "the soft limit is raised, and the reserve is free"
        with broker.connect() as client:
            assert client.health()
    finally:
        assert broker.stop() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_connections_beyond_the_setting_are_refused(tmp_path: Path, transport: Transport) -> None:
    with BrokerProcess(tmp_path / "data", *_FLAGS, "--connections-max=2", transport=transport) as broker:
        with broker.connect() as one, broker.connect() as two:
            assert one.health()
            assert two.health()
            with contextlib.suppress(ConnectionError), connected(broker.url) as third:
                # It may be closed while it is made, or after the handshake has begun.
                while third.recv(4096):
                    pass
            assert one.health().counters["connections_refused"] >= 1
            assert two.health()
        with broker.connect() as three:
            assert three.health()

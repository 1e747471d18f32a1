from __future__ import annotations

from pathlib import Path

import pytest

from oncemq.protocol.errors import SettingInvalid
from oncemq.tools.bench.transports import Transport, open_wire, transport_of


@pytest.mark.parametrize("transport", Transport)
def test_a_small_message_comes_back_from_an_echo(transport: Transport) -> None:
    wire = open_wire("echo", transport)
    try:
        times_s = wire.echo_times(0.02)
    finally:
        wire.close()
    assert times_s
    assert min(times_s) > 0


@pytest.mark.parametrize("transport", Transport)
def test_an_echo_can_write_before_it_answers(transport: Transport, tmp_path: Path) -> None:
    store = tmp_path / "store"
    wire = open_wire("echo", transport, store=store)
    try:
        count = len(wire.echo_times(0.02))
    finally:
        wire.close()
    # The first message is the end of nothing.
    assert store.read_bytes().rstrip(b"\0") == b"b" * 4096 * (count + 1)


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize("frame_bytes", [1, 100_000, 3_000_000])
def test_a_sink_receives_messages_of_any_size(transport: Transport, frame_bytes: int) -> None:
    wire = open_wire("sink", transport)
    try:
        # The second call shows that the first one has left nothing behind.
        for _ in range(2):
            sent, seconds = wire.one_way(frame_bytes, 0.02)
            assert sent >= 8
            assert seconds > 0
    finally:
        wire.close()


@pytest.mark.parametrize(
    ("url", "transport"),
    [
        ("oncemq://127.0.0.1:5554", Transport.TCP),
        ("oncemq+unix:///run/oncemq.sock", Transport.UNIX),
        ("tcp://127.0.0.1:5555", Transport.ZEROMQ_TCP),
        ("ipc:///run/oncemq.sock,tcp://127.0.0.1:5555", Transport.ZEROMQ_IPC),
    ],
)
def test_bounds_use_the_transport_of_the_measured_address(url: str, transport: Transport) -> None:
    assert transport_of(url) is transport


def test_an_address_without_a_transport_is_refused() -> None:
    with pytest.raises(SettingInvalid, match="memory:"):
        transport_of("memory:")

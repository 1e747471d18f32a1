"""Packets that wait for the broker: a source that sends many leaves places for others, and costs little."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncemq.gateways.udp import context
from oncemq.gateways.udp.context import UdpContext
from oncemq.gateways.udp.plain import packets
from oncemq.gateways.udp.plain.server import PlainServer
from oncemq.gateways.udp.settings import BUSY_SOURCE_TASKS_MAX, UdpSettings
from oncemq.gateways.udp.tokens import Address

_GREEDY, _OTHER = ("127.0.0.1", 1), ("127.0.0.1", 2)


def _context() -> UdpContext:
    return UdpContext(cast("Any", None), cast("Any", None), UdpSettings())


def _accepted(shared: UdpContext, address: Address, count: int, size: int = 0) -> int:
    """Return how many packets are accepted, none of which is ever answered."""
    return sum(
        shared.run_for_packet(asyncio.Event().wait(), "a packet", lambda _: None, address, size)  # type: ignore[arg-type]
        for _ in range(count)
    )


@pytest.mark.parametrize(("limit", "size"), [("PACKET_TASKS_MAX", 0), ("PACKET_TASKS_BYTES_MAX", 1)])
def test_a_source_that_sends_many_packets_leaves_places_for_others(
    monkeypatch: pytest.MonkeyPatch, limit: str, size: int
) -> None:
    monkeypatch.setattr(context, limit, 20)

    async def visit() -> None:
        shared = _context()
        assert _accepted(shared, _GREEDY, 100, size) == 10
        assert _accepted(shared, _OTHER, 100, size) == BUSY_SOURCE_TASKS_MAX
        await shared.finish(0)

    asyncio.run(visit())


def test_a_packet_without_a_place_is_dropped_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "PACKET_TASKS_MAX", 0)
    monkeypatch.setattr(packets, "parse", lambda _: pytest.fail("it is parsed"))

    async def visit() -> None:
        shared = _context()
        PlainServer(shared, cast("Any", SimpleNamespace(refusal=lambda: None)), cast("Any", None)).receive(
            b"1 orders x", _GREEDY
        )
        assert shared.counters["dropped_busy"] == 1

    asyncio.run(visit())


@pytest.mark.parametrize("zeros", [0, 1, 1023, 1024, 1025, 60_000])
def test_zeros_at_the_end_of_a_packet_are_ignored(zeros: int) -> None:
    assert packets.parse(b"1 orders \0x" + bytes(zeros)) == packets.Publish("orders", b"\0x")

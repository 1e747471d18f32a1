"""A gateway's connection to its broker: batches of single messages, and long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncemq.gateways import link as link_module
from oncemq.gateways.link import Link
from oncemq.gateways.put_batcher import BATCH_BYTES_MAX, _next_batch_count
from oncemq.protocol.commands import START_NEW, Command, CreateTopic, Read
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import GetReply, Reply


def test_keys_and_headers_count_for_the_size_of_what_is_merged() -> None:
    half = b"x" * (BATCH_BYTES_MAX // 2 - 100)
    nobody: Any = None
    for item in ((half, None, None), (b"", half, None), (b"", b"", {"h": half})):
        assert _next_batch_count([(*item, nobody)] * 5) == 2


def test_a_message_that_comes_between_two_slices_of_a_wait_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "WAIT_SLICE_MS", 10)

    class Spied(Link):
        slices = 0

        async def ask(
            self, command: Command, payload: Any = None, *, give_up_ms: float = 0.0
        ) -> tuple[Reply, Sequence[Frame]]:
            answer = await super().ask(command, payload, give_up_ms=give_up_ms)
            self.slices += 1
            if self.slices == 1:
                await self.put("t", b"hello")
            return answer

    async def waiting() -> None:
        link = Spied(["memory:link-wait"], label="test")
        await link.operate(CreateTopic("t", retain_ms=3_600_000))
        reply, payloads = await link.wait(Read("t", START_NEW, 1000, 30_000))
        link.close()
        assert isinstance(reply, GetReply)
        assert (link.slices, len(payloads), reply.next_position) == (2, 1, 1)

    asyncio.run(waiting())


def test_a_large_reply_is_requested_only_after_space_was_reserved_for_it() -> None:
    reserved: list[int] = []

    async def reserve(reply_bytes: int) -> None:
        reserved.append(reply_bytes)

    async def read(link: Link, position: int, bytes_max: int) -> tuple[list[int], int]:
        reserved.clear()
        _, payloads = await link.wait(Read("t", position, bytes_max, 1))
        return reserved.copy(), sum(map(len, payloads))

    async def reading() -> None:
        link = Link(["memory:link-reserve"], label="test", reserve=reserve)
        await link.operate(CreateTopic("t", retain_ms=3_600_000))
        for value in (b"small", b"x" * 200_000, b"small", b"small"):
            await link.put("t", value)
        assert (await read(link, 2, 1))[0] == [0]
        assert (await read(link, 2, 300_000))[0] == [0]
        # What one message needs is not known: it may be as large as a batch.
        asked, received = await read(link, 1, 1)
        assert asked[0] == 0
        assert asked[1] >= received > 200_000
        asked, received = await read(link, 0, 300_000)
        assert (asked, received > 200_000) == ([0, 300_000], True)
        link.close()

    asyncio.run(reading())

"""GET /v1/health: whether the broker replies."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import struct_from
from oncemq.protocol.commands import Health
from oncemq.protocol.replies import HealthReply

ENDPOINTS: list[Endpoint] = []


class Healthy(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    version: str | UnsetType = UNSET
    broker_id: str | UnsetType = UNSET
    journal: str | UnsetType = UNSET
    time_ms: int | UnsetType = UNSET
    uptime_ms: int | UnsetType = UNSET
    topics: int | UnsetType = UNSET
    sessions: int | UnsetType = UNSET
    #: How many bytes puts may still write before the disk is full.
    writable_bytes: int | UnsetType = UNSET
    #: How far the broker's clock is behind the system clock, because a leap of the system clock is not confirmed.
    clock_behind_ms: int | UnsetType = UNSET


_EXAMPLE = Healthy("ok", "0.1.0", "77c4f8d2", "file:./oncemq-data", 1_790_000_000_000, 5_000, 3, 2, 50_000_000_000, 0)


@endpoint(
    ENDPOINTS,
    "GET",
    "/v1/health",
    tag="health",
    summary="Check the broker's health",
    is_monitoring=True,
    replies=(Reply(body=Healthy, description="The broker replies.", example=_EXAMPLE),),
)
async def health(call: Call[None, None]) -> Answer:
    """Asks the broker itself; 503 if it is unreachable. If the broker has users, only they get more than the status."""
    reply = await call.link.query(Health(), HealthReply)
    if call.access.identity.caller is None:
        return answer(Healthy("ok"))
    behind_ms = reply.counters.get("clock_behind_ms", 0)
    return answer(struct_from(Healthy, reply, status="ok", journal=reply.journal or UNSET, clock_behind_ms=behind_ms))

"""GET /metrics: how the broker is, in figures that Prometheus collects.

A scrape costs the broker little, whatever there is: it looks at so many topics and subscriptions and at no more, page
by page, and one scrape waits for the other. What it left out it counts.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq.client.worker.dead_letters import DEAD_SUBSCRIBER
from oncemq.gateways.http.framework.endpoint import TEXT, Answer, Call, Endpoint, Reply, endpoint
from oncemq.gateways.http.metrics.exposition import MEDIA, Exposition, Family
from oncemq.gateways.http.v1.ownership import just_before
from oncemq.gateways.link import Link, expect
from oncemq.protocol import errors
from oncemq.protocol.commands import Health, Patterns, Subscriptions, Topics
from oncemq.protocol.limits import LIST_PAGE_MAX, NAME_BYTES_MAX
from oncemq.protocol.replies import (
    HealthReply,
    PatternInfo,
    PatternsReply,
    SubscriptionInfo,
    SubscriptionsReply,
    TopicInfo,
    TopicsReply,
)

ENDPOINTS: list[Endpoint] = []

#: Topics whose subscriptions are asked for together.
_TOGETHER = 32

BUILD = Family("oncemq_build_info", "gauge", "Always 1; the labels say which broker this is.")
UPTIME = Family("oncemq_uptime_seconds", "gauge", "Since the broker was started, or took over.")
TOPICS = Family("oncemq_topics", "gauge", "Topics.")
SESSIONS = Family("oncemq_sessions", "gauge", "Sessions, named and anonymous.")
WRITABLE = Family("oncemq_writable_bytes", "gauge", "What puts may still write; left out where it is not known.")
LEFT_OUT = Family("oncemq_metrics_left_out", "gauge", "Things of a kind that this scrape does not show.")

TOPIC_MESSAGES = Family("oncemq_topic_messages_total", "counter", "Messages that were ever put: the next offset.")
TOPIC_STORED = Family("oncemq_topic_stored_messages", "gauge", "From the first message that is stored to the last.")
TOPIC_BYTES = Family("oncemq_topic_stored_bytes", "gauge", "Bytes of the messages that are stored.")
TOPIC_DELAYED = Family("oncemq_topic_delayed_messages", "gauge", "Messages that are not due yet.")
TOPIC_SUBSCRIPTIONS = Family("oncemq_topic_subscriptions", "gauge", "Subscriptions, those by pattern too.")
TOPIC_QUOTA = Family("oncemq_topic_quota_bytes", "gauge", "No more bytes than that are stored; only where it is set.")

LAG = Family("oncemq_subscription_lag_messages", "gauge", "Messages that are not done.")
ACKED = Family("oncemq_subscription_acked_offset", "gauge", "All offsets below are done; a seek moves it either way.")
DROPPED = Family("oncemq_subscription_dropped_messages_total", "counter", "Messages lost to the topic's quota.")
LEASED = Family("oncemq_subscription_leased_messages", "gauge", "Of a shared one: messages that are out.")
MEMBERS = Family("oncemq_subscription_members", "gauge", "Of a shared one: its consumers.")
DEAD = Family("oncemq_dead_letters", "gauge", "Dead letters that nobody has looked after.")

PATTERN_LAG = Family("oncemq_pattern_lag_messages", "gauge", "Messages on all topics that match which are not done.")
PATTERN_TOPICS = Family("oncemq_pattern_topics", "gauge", "Topics that match.")

#: Of those that the broker counts since its start, by its own names.
COUNTERS = {
    "commands": "Commands that were decided: puts, gets, acks and all others.",
    "groups": "Groups that were written, each with one sync.",
    "events": "Events in these groups.",
    "record_bytes": "Bytes of messages in these groups.",
    "malformed": "Requests that could not be read.",
    "snapshots": "Snapshots that were written.",
    "records_moved": "Batches that were copied forward, so that their segment could be used again.",
    "groups_replayed": "Groups that were replayed at the start.",
}


class MetricsParameters(msgspec.Struct, frozen=True):
    prefix: Annotated[
        str,
        Meta(max_length=NAME_BYTES_MAX, description="Only topics and patterns whose names begin like this."),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=10_000, description="So many topics, subscriptions and patterns at the most, of each.")
    ] = LIST_PAGE_MAX


_EXAMPLE = """\
# HELP oncemq_subscription_lag_messages Messages that are not done.
# TYPE oncemq_subscription_lag_messages gauge
oncemq_subscription_lag_messages{topic="orders",subscriber="kitchen"} 3
"""


@endpoint(
    ENDPOINTS,
    "GET",
    "/metrics",
    tag="health",
    summary="Figures for Prometheus",
    parameters=MetricsParameters,
    replies=(Reply(media=(TEXT,), description="Its text format, version 0.0.4.", example=_EXAMPLE),),
)
async def metrics(call: Call[MetricsParameters, None]) -> Answer:
    """How the broker is, how much topics hold, and how far behind subscriptions are. Topics come in order of their
    names, up to `limit`; `oncemq_metrics_left_out` counts those that are not shown."""
    async with call.state.scraping:
        return Answer(await _scrape(call.link, call.parameters), media=MEDIA)


async def _scrape(link: Link, parameters: MetricsParameters) -> bytes:
    prefix, limit = parameters.prefix, parameters.limit
    shown = Exposition()
    health = expect((await link.ask(Health()))[0], HealthReply)
    _add_health(shown, health)
    topics = await _topics(link, prefix, limit)
    for topic in topics:
        _add_topic(shown, topic)
    subscriptions = await _subscriptions(link, topics, limit)
    for subscription in subscriptions:
        _add_subscription(shown, subscription)
    patterns, patterns_left_out = await _patterns(link, prefix, limit)
    for pattern in patterns:
        _add_pattern(shown, pattern)
    for kind, count in (
        ("topics", health.topics - len(topics)),
        ("subscriptions", sum(topic.subscriptions for topic in topics) - len(subscriptions)),
        ("patterns", patterns_left_out),
    ):
        shown.add(LEFT_OUT, max(0, count), {"kind": kind})
    return shown.encode()


# What there is.


async def _topics(link: Link, prefix: str, limit: int) -> list[TopicInfo]:
    found: list[TopicInfo] = []
    after = just_before(prefix)
    while len(found) < limit:
        page = expect((await link.ask(Topics(after, min(LIST_PAGE_MAX, limit - len(found)))))[0], TopicsReply)
        found += [topic for topic in page.topics if topic.name.startswith(prefix)]
        after = page.after
        if not after or not after.startswith(prefix):
            break
    return found


async def _subscriptions(link: Link, topics: list[TopicInfo], limit: int) -> list[SubscriptionInfo]:
    asked = _within(topics, limit)
    found: list[SubscriptionInfo] = []
    for first in range(0, len(asked), _TOGETHER):
        pages = (_subscriptions_of(link, *each) for each in asked[first : first + _TOGETHER])
        for page in await asyncio.gather(*pages):
            found += page
    return found


def _within(topics: list[TopicInfo], limit: int) -> list[tuple[str, int]]:
    """How many subscriptions to ask for of which topic, so that there are no more than `limit` of them."""
    asked: list[tuple[str, int]] = []
    for topic in topics:
        count = min(limit, topic.subscriptions)
        if count:
            asked.append((topic.name, count))
            limit -= count
    return asked


async def _subscriptions_of(link: Link, topic: str, limit: int) -> list[SubscriptionInfo]:
    found: list[SubscriptionInfo] = []
    after = ""
    while len(found) < limit:
        command = Subscriptions(topic, after, min(LIST_PAGE_MAX, limit - len(found)))
        try:
            page = expect((await link.ask(command))[0], SubscriptionsReply)
        except errors.TopicUnknown:
            # It went meanwhile.
            break
        found += page.subscriptions
        after = page.after
        if not after:
            break
    return found


async def _patterns(link: Link, prefix: str, limit: int) -> tuple[list[PatternInfo], int]:
    """And how many there are besides: brokers have few enough of them to look at all."""
    found: list[PatternInfo] = []
    seen = 0
    after = ""
    while True:
        page = expect((await link.ask(Patterns(after)))[0], PatternsReply)
        seen += len(page.patterns)
        found += [pattern for pattern in page.patterns if pattern.pattern.startswith(prefix)]
        after = page.after
        if not after:
            return found[:limit], seen - len(found[:limit])


# What is said of it.


def _add_health(shown: Exposition, health: HealthReply) -> None:
    shown.add(BUILD, 1, {"version": health.version, "broker_id": health.broker_id})
    shown.add(UPTIME, health.uptime_ms / 1000)
    shown.add(TOPICS, health.topics)
    shown.add(SESSIONS, health.sessions)
    if health.is_free_space_known:
        shown.add(WRITABLE, health.writable_bytes)
    for name, value in sorted({**dict.fromkeys(COUNTERS, 0), **health.counters}.items()):
        help_text = COUNTERS.get(name, "A counter of the broker.")
        shown.add(Family(f"oncemq_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}_total", "counter", help_text), value)


def _add_topic(shown: Exposition, topic: TopicInfo) -> None:
    labels = {"topic": topic.name}
    shown.add(TOPIC_MESSAGES, topic.end_offset, labels)
    shown.add(TOPIC_STORED, topic.end_offset - topic.first_offset, labels)
    shown.add(TOPIC_BYTES, topic.stored_bytes, labels)
    shown.add(TOPIC_DELAYED, topic.delayed, labels)
    shown.add(TOPIC_SUBSCRIPTIONS, topic.subscriptions, labels)
    if topic.quota_bytes:
        shown.add(TOPIC_QUOTA, topic.quota_bytes, labels)


def _add_subscription(shown: Exposition, info: SubscriptionInfo) -> None:
    labels = {"topic": info.topic, "subscriber": info.subscriber}
    if info.pattern:
        labels["pattern"] = info.pattern
    shown.add(LAG, info.lag, labels)
    shown.add(ACKED, info.acked, labels)
    shown.add(DROPPED, info.dropped, labels)
    if info.sharing is not None:
        shown.add(LEASED, info.leased, labels)
        shown.add(MEMBERS, info.members, labels)
    if info.subscriber == DEAD_SUBSCRIBER:
        shown.add(DEAD, info.lag, {"topic": info.topic})


def _add_pattern(shown: Exposition, info: PatternInfo) -> None:
    labels = {"pattern": info.pattern, "subscriber": info.subscriber}
    shown.add(PATTERN_LAG, info.lag, labels)
    shown.add(PATTERN_TOPICS, info.topics, labels)

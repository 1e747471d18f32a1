"""GET /metrics: the broker's metrics for Prometheus.

A scrape costs the broker little, however many topics there are: it reads at most `limit` topics and subscriptions, page
by page, and only one scrape runs at a time. It counts what it left out.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework.endpoint import TEXT, Answer, Call, Endpoint, Reply, endpoint
from oncemq.gateways.http.lookups import just_before
from oncemq.gateways.http.metrics.exposition import MEDIA, Exposition, Family
from oncemq.gateways.link import Link
from oncemq.gateways.tasks import failures
from oncemq.protocol import errors
from oncemq.protocol.commands import Health, Patterns, Subscriptions, Topics
from oncemq.protocol.limits import LIST_PAGE_MAX, NAME_BYTES_MAX
from oncemq.protocol.names import DEAD_SUBSCRIBER
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

#: Topics whose subscriptions are read concurrently.
_TOGETHER = 32
#: The `after` of a page begins with it if it stands for a topic that the user may not see.
_HIDDEN = "\0"

BUILD = Family("oncemq_build_info", "gauge", "Always 1; the labels identify the broker.")
UPTIME = Family("oncemq_uptime_seconds", "gauge", "Seconds since the broker was started or took over.")
TOPICS = Family("oncemq_topics", "gauge", "Number of topics.")
SESSIONS = Family("oncemq_sessions", "gauge", "Number of sessions, named and anonymous.")
WRITABLE = Family("oncemq_writable_bytes", "gauge", "Bytes that puts may still write; absent if unknown.")
CLOCK_BEHIND = Family(
    "oncemq_clock_behind_seconds",
    "gauge",
    "How far the broker's clock is behind the system clock, because a leap of the system clock is not confirmed.",
)
LEFT_OUT = Family("oncemq_metrics_left_out", "gauge", "Objects of a kind that this scrape left out.")

TOPIC_MESSAGES = Family("oncemq_topic_messages_total", "counter", "Messages put so far: the next offset.")
TOPIC_STORED = Family("oncemq_topic_stored_messages", "gauge", "Messages from the first stored one to the last.")
TOPIC_BYTES = Family("oncemq_topic_stored_bytes", "gauge", "Bytes of stored messages.")
TOPIC_DELAYED = Family("oncemq_topic_delayed_messages", "gauge", "Messages that are not due yet.")
TOPIC_SUBSCRIPTIONS = Family("oncemq_topic_subscriptions", "gauge", "Subscriptions, including those by pattern.")
TOPIC_QUOTA = Family("oncemq_topic_quota_bytes", "gauge", "Maximum of stored bytes; absent if there is no quota.")

LAG = Family("oncemq_subscription_lag_messages", "gauge", "Messages that are not acked.")
ACKED = Family("oncemq_subscription_acked_offset", "gauge", "All offsets below are acked; a seek may lower it.")
DROPPED = Family("oncemq_subscription_dropped_messages_total", "counter", "Messages lost to the topic's quota.")
LEASED = Family("oncemq_subscription_leased_messages", "gauge", "Leased messages of a shared subscription.")
MEMBERS = Family("oncemq_subscription_members", "gauge", "Consumers of a shared subscription.")
DEAD = Family("oncemq_dead_letters", "gauge", "Dead letters that nobody has handled.")

PATTERN_LAG = Family("oncemq_pattern_lag_messages", "gauge", "Messages that are not acked, on all matching topics.")
PATTERN_TOPICS = Family("oncemq_pattern_topics", "gauge", "Matching topics.")

FAILURES = Family("oncemq_gateway_failures_total", "counter", "Unexpected failures in the gateway's process.")

#: The broker's counters since its start, by the broker's names.
COUNTERS = {
    "commands": "Commands decided: puts, gets, acks and all others.",
    "groups": "Groups written, each with one sync.",
    "events": "Events in these groups.",
    "record_bytes": "Bytes of messages in these groups.",
    "malformed": "Requests, and bytes of stream connections, that could not be decoded.",
    "extents_missing": "Segments with needed messages that did not exist at the start.",
    "connections_refused": "Connections refused because there were too many, or because of their credentials.",
    "tls_failed": "Connections whose TLS handshake failed.",
    "peers_cut_unfinished": "Clients disconnected because their request, or their opening, did not end.",
    "peers_cut_revoked": "Clients disconnected because their credential was removed.",
    "peers_cut_unread": "Clients disconnected because they did not read their replies.",
    "replies_dropped": "Replies dropped because clients did not read earlier ones.",
    "logins": "Credentials that were accepted.",
    "logins_failed": "Credentials that are not valid, and connections without any.",
    "logins_limited": "Logins refused because too many have failed from their address.",
    "refused_forbidden": "Commands refused because their user does not have the right.",
    "refused_quota_reached": "Commands and connections refused because a quota of their user is reached.",
    "refused_quota_full": "Puts refused because the topics of a user store as much as its quota allows.",
    "refused_rate_limited": "Requests refused because their user has sent too many messages or bytes.",
    "snapshots": "Snapshots written.",
    "records_moved": "Batches copied forward, so that their segment could be used again.",
    "groups_replayed": "Groups replayed at the start.",
    "extents_damaged": "Segments with damaged groups, found while batches were copied forward.",
    "records_unreadable": "Batches that could not be copied forward, because the disk has damaged them.",
}


class MetricsParameters(msgspec.Struct, frozen=True):
    prefix: Annotated[
        str,
        Meta(max_length=NAME_BYTES_MAX, description="Only topics and patterns whose names start with this."),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=10_000, description="Maximum number of topics, of subscriptions and of patterns.")
    ] = LIST_PAGE_MAX


_EXAMPLE = """\
# HELP oncemq_subscription_lag_messages Messages that are not acked.
# TYPE oncemq_subscription_lag_messages gauge
oncemq_subscription_lag_messages{topic="orders",subscriber="kitchen"} 3
"""


@endpoint(
    ENDPOINTS,
    "GET",
    "/metrics",
    tag="health",
    summary="Metrics for Prometheus",
    parameters=MetricsParameters,
    is_monitoring=True,
    replies=(Reply(media=(TEXT,), description="Prometheus' text format, version 0.0.4.", example=_EXAMPLE),),
    refusals=(errors.Busy,),
)
async def metrics(call: Call[MetricsParameters, None]) -> Answer:
    """Metrics of the broker, its topics and its subscriptions. Topics are in the order of their names, at most `limit`;
    `oncemq_metrics_left_out` counts the rest. If the broker has users, they get what they may see: a user with the role
    viewer gets everything."""
    async with call.state.scrape_lock:
        return Answer(await _scrape(call.link, call.parameters), media=MEDIA)


async def _scrape(link: Link, parameters: MetricsParameters) -> bytes:
    prefix, limit = parameters.prefix, parameters.limit
    shown = Exposition()
    health = await link.query(Health(), HealthReply)
    _add_health(shown, health)
    for name, count in sorted(failures.items()):
        shown.add(FAILURES, count, {"what": name})
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


# Reading the broker's lists.


async def _topics(link: Link, prefix: str, limit: int) -> list[TopicInfo]:
    found: list[TopicInfo] = []
    after = just_before(prefix)
    while len(found) < limit:
        page = await link.query(Topics(after, min(LIST_PAGE_MAX, limit - len(found))), TopicsReply)
        found += [topic for topic in page.topics if topic.name.startswith(prefix)]
        after = page.after
        if not after or not after.startswith((prefix, _HIDDEN)):
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
    """Return how many subscriptions to read of which topic, at most `limit` in total."""
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
            page = await link.query(command, SubscriptionsReply)
        except (errors.TopicUnknown, errors.Forbidden):
            # It was deleted meanwhile, or the user may not see it any more.
            break
        found += page.subscriptions
        after = page.after
        if not after:
            break
    return found


async def _patterns(link: Link, prefix: str, limit: int) -> tuple[list[PatternInfo], int]:
    """Return patterns, and how many are left out. There are few enough of them to read all."""
    found: list[PatternInfo] = []
    seen = 0
    after = ""
    while True:
        page = await link.query(Patterns(after), PatternsReply)
        seen += len(page.patterns)
        found += [pattern for pattern in page.patterns if pattern.pattern.startswith(prefix)]
        after = page.after
        if not after:
            return found[:limit], seen - len(found[:limit])


# Adding samples.


def _add_health(shown: Exposition, health: HealthReply) -> None:
    shown.add(BUILD, 1, {"version": health.version, "broker_id": health.broker_id})
    shown.add(UPTIME, health.uptime_ms / 1000)
    shown.add(TOPICS, health.topics)
    shown.add(SESSIONS, health.sessions)
    if health.is_free_space_known:
        shown.add(WRITABLE, health.writable_bytes)
    if not health.journal:
        # The user is not a viewer, and gets no counters either.
        return
    counters = {**dict.fromkeys(COUNTERS, 0), **health.counters}
    shown.add(CLOCK_BEHIND, counters.pop("clock_behind_ms", 0) / 1000)
    for name, value in sorted(counters.items()):
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

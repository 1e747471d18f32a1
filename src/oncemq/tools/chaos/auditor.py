"""The auditor subscribes to everything before the first message and never acks, so that the broker keeps all messages.
At the end it reads what is stored, without the faulty network: everything else is compared with that."""

from __future__ import annotations

import msgspec

import oncemq
from oncemq.tools.chaos.plan import TOPICS
from oncemq.tools.chaos.worker import END_OFFSETS, TIMEOUT_S, TRIES, RunContext
from oncemq.tools.faults.event_log import EventLog, id_of

AUDITOR = "auditor"


def subscribe_to_all(context: RunContext) -> int:
    """Create the topics and the subscriptions that keep all messages."""
    with _connect(context) as client:
        for topic in TOPICS:
            client.create_topic(topic)
            client.subscribe(topic, AUDITOR)
    return 0


def read_all(context: RunContext) -> int:
    """Log everything that is stored, and publish the end offsets to the subscribers."""
    log, ends = EventLog(context.log_path(AUDITOR)), {}
    with _connect(context) as client:
        for topic in TOPICS:
            entries = [("stored", topic, message.offset, id_of(message.value)) for message in client.read(topic)]
            log.write(*entries)
            ends[topic] = len(entries)
            log.write(("end", topic, ends[topic]))
    # Subscribers look for the file while it is written.
    unfinished = context.folder / f"{END_OFFSETS}.tmp"
    unfinished.write_bytes(msgspec.json.encode(ends))
    unfinished.rename(context.folder / END_OFFSETS)
    return 0


def _connect(context: RunContext) -> oncemq.Client:
    client: oncemq.Client = oncemq.connect(
        context.broker_url, label=AUDITOR, timeout_s=TIMEOUT_S, tries=TRIES, record=""
    )
    return client

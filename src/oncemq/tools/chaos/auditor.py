"""The auditor: subscribed to everything before the first message, it never acks, so the broker keeps it all. In the
end it reads what was stored, past the network of the run: the one truth that everybody is compared with."""

from __future__ import annotations

import msgspec

import oncemq
from oncemq.tools.chaos.event_log import Diary, id_of
from oncemq.tools.chaos.plan import TOPICS
from oncemq.tools.chaos.worker import ENDS, TIMEOUT_S, TRIES, Scene

AUDITOR = "auditor"


def begin(scene: Scene) -> int:
    """Make the topics, and see to it that they keep everything."""
    with oncemq.connect(scene.broker_url, label=AUDITOR, timeout_s=TIMEOUT_S, tries=TRIES, record="") as client:
        for topic in TOPICS:
            client.create_topic(topic)
            client.subscribe(topic, AUDITOR)
    return 0


def read_all(scene: Scene) -> int:
    diary, ends = Diary(scene.folder / f"{AUDITOR}.diary"), {}
    with oncemq.connect(scene.broker_url, label=AUDITOR, timeout_s=TIMEOUT_S, tries=TRIES, record="") as client:
        for topic in TOPICS:
            entries = [("stored", topic, message.offset, id_of(message.value)) for message in client.read(topic)]
            diary.write(*entries)
            ends[topic] = len(entries)
            diary.write(("end", topic, ends[topic]))
    # Subscribers look for it while it is written.
    draft = scene.folder / f"{ENDS}.draft"
    draft.write_bytes(msgspec.json.encode(ends))
    draft.rename(scene.folder / ENDS)
    return 0

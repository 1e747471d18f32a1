"""Collects what event logs say into the evidence that the checker judges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from oncemq.tools.faults.checker import Delivery, Evidence
from oncemq.tools.faults.event_log import read_events


def read_log(evidence: Evidence, name: str, path: Path, subscribed: Mapping[str, int] | None = None) -> None:
    """Add what a process logged. `subscribed`: subscriptions that were made for it, topic → first offset."""
    #: The current subscription to each topic, and how far it was acked.
    current: dict[str, Delivery] = {}
    acked: dict[str, int] = {}

    def subscribe(topic: str, offset: int) -> None:
        current[topic] = Delivery(name, topic, offset)
        evidence.deliveries.append(current[topic])

    for topic, offset in (subscribed or {}).items():
        subscribe(topic, offset)
    for entry in read_events(path):
        match entry:
            case ["attempted", topic, message]:
                evidence.attempted.setdefault(topic, []).append(message)
            case ["acknowledged", topic, message, offset_text]:
                evidence.acknowledged.setdefault(topic, {})[message] = int(offset_text)
            case ["stored", topic, offset_text, message]:
                _add_stored(evidence, name, topic, int(offset_text), message)
            case ["end", topic, _]:
                evidence.stored.setdefault(topic, [])
            case ["subscribed", topic, offset_text]:
                subscribe(topic, int(offset_text))
            case ["started", _]:
                for topic, delivery in current.items():
                    delivery.restarts[len(delivery.got)] = acked.get(topic, delivery.start)
            case ["delivered", topic, offset_text, message] if topic in current:
                current[topic].got.append((int(offset_text), message))
            case ["acked", topic, offset_text]:
                acked[topic] = max(acked.get(topic, 0), int(offset_text))
            case ["unsubscribed", topic] if topic in current:
                current.pop(topic).is_ended = True
            case _:
                evidence.errors.append(f"{name}: {' '.join(entry)}")


def _add_stored(evidence: Evidence, name: str, topic: str, offset: int, message: str) -> None:
    stored = evidence.stored.setdefault(topic, [])
    if offset != len(stored):
        evidence.errors.append(f"{name}: '{topic}' continues at offset {offset:,} instead of {len(stored):,}")
    stored.append(message)

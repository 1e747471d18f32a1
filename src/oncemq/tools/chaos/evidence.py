"""Reads what the workers of a run have left behind: diaries, and the databases of those with an inbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from oncemq.tools.chaos.auditor import AUDITOR
from oncemq.tools.chaos.checker import Delivery, Evidence
from oncemq.tools.chaos.event_log import read
from oncemq.tools.chaos.plan import ACTORS
from oncemq.tools.chaos.subscribers import database_of


def gather(folder: Path) -> Evidence:
    evidence = Evidence()
    _read_diary(evidence, folder, AUDITOR)
    for actor in ACTORS:
        _read_diary(evidence, folder, actor.name)
        if actor.kind == "inbox":
            _read_database(evidence, folder, actor.name)
    return evidence


def _read_diary(evidence: Evidence, folder: Path, name: str) -> None:
    #: By topic: the subscription that goes on.
    current: dict[str, Delivery] = {}
    for entry in read(folder / f"{name}.diary"):
        match entry:
            case ["will", topic, message]:
                evidence.attempted.setdefault(topic, set()).add(message)
            case ["done", topic, message, offset]:
                evidence.acknowledged.setdefault(topic, {})[message] = int(offset)
            case ["stored", topic, offset, message]:
                _store(evidence, topic, int(offset), message)
            case ["end", topic, _]:
                evidence.stored.setdefault(topic, [])
            case ["subscribed", topic, offset]:
                current[topic] = Delivery(name, topic, int(offset))
                evidence.deliveries.append(current[topic])
            case ["got", topic, offset, message] if topic in current:
                current[topic].got.append((int(offset), message))
            case ["ended", topic] if topic in current:
                current.pop(topic).is_ended = True
            case _:
                evidence.errors.append(f"{name}: {' '.join(entry)}")


def _store(evidence: Evidence, topic: str, offset: int, message: str) -> None:
    stored = evidence.stored.setdefault(topic, [])
    if offset != len(stored):
        evidence.errors.append(f"{AUDITOR}: '{topic}' goes on at offset {offset:,}, not {len(stored):,}")
    stored.append(message)


def _read_database(evidence: Evidence, folder: Path, name: str) -> None:
    path = database_of(folder, name)
    if not Path(path).exists():
        return
    try:
        with closing(sqlite3.connect(path)) as connection:
            evidence.deliveries += _effects(connection, name)
    except sqlite3.OperationalError as error:
        evidence.errors.append(f"{name}: its database can't be read: {error}")


def _effects(connection: sqlite3.Connection, name: str) -> Iterable[Delivery]:
    topics = connection.execute("select topic from oncemq_inbox where subscriber = ?", (name,)).fetchall()
    deliveries = {topic: Delivery(name, topic, 0) for (topic,) in topics}
    for topic, offset, message in connection.execute("select topic, offset, message from effects order by number"):
        deliveries.setdefault(topic, Delivery(name, topic, 0)).got.append((offset, message))
    return deliveries.values()

"""Collects what the processes of a run have left: event logs, and the databases of subscribers with an inbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from oncemq.tools.chaos.auditor import AUDITOR
from oncemq.tools.chaos.plan import CLIENTS, PUSH_CLIENTS
from oncemq.tools.chaos.subscribers import database_path
from oncemq.tools.chaos.worker import log_path
from oncemq.tools.faults.checker import Delivery, Evidence
from oncemq.tools.faults.evidence import read_log


def gather(folder: Path) -> Evidence:
    """Read everything. The messages of a publisher are one stream over all its processes."""
    evidence = Evidence(stream_of=lambda message: message.partition(".")[0])
    for name in (AUDITOR, *(client.name for client in CLIENTS + PUSH_CLIENTS)):
        read_log(evidence, name, log_path(folder, name))
    for client in CLIENTS:
        if client.kind == "inbox":
            _read_database(evidence, folder, client.name)
    return evidence


def _read_database(evidence: Evidence, folder: Path, name: str) -> None:
    path = database_path(folder, name)
    if not path.exists():
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

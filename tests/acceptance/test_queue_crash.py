"""Short campaigns with the queue API over HTTP and a server that is killed (campaigns/queue.py)."""

from __future__ import annotations

import random
from pathlib import Path

from oncemq.http import Consumer, Producer
from oncemq.testing.postgres import url_of
from tests.acceptance.campaigns import queue
from tests.acceptance.processes import SMALL
from tests.forking import ForkedBroker

KILLS = 2


def test_every_log_is_complete_and_in_order_though_the_server_is_killed(tmp_path: Path) -> None:
    _check(tmp_path)


def test_every_log_is_complete_and_in_order_on_postgresql(tmp_path: Path, postgres: str) -> None:
    _check(tmp_path, f"--journal={url_of(postgres)}", "--lease-ms=500")


def _check(folder: Path, *flags: str) -> None:
    report = queue.run(folder, KILLS, random.SystemRandom().randrange(2**32), *flags)
    assert report.problems == []
    assert report.stored == report.acknowledged > 0
    assert report.broker_kills == {"server": KILLS, "gateway": 0}


def test_a_message_makes_the_round_trip_through_a_server(tmp_path: Path) -> None:
    server = ForkedBroker(tmp_path / "data", *SMALL, http=True)
    server.start()
    try:
        with Producer(server.http_url) as producer, Consumer(server.http_url) as consumer:
            producer.register("DS")
            consumer.register("DS")
            producer.enqueue("DS", "Distributed systems are fun.")
            assert consumer.size("DS") == 1
            assert consumer.dequeue("DS") == "Distributed systems are fun."
            assert consumer.size("DS") == 0
    finally:
        server.stop()

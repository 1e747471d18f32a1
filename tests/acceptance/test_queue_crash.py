"""The queue over HTTP, its library and a server that is killed: short campaigns. queue_crash.py says more."""

from __future__ import annotations

import random
from pathlib import Path

from oncemq.http import Consumer, Producer
from oncemq.testing.postgres import url_of
from tests.acceptance import queue_crash
from tests.acceptance.processes import SMALL
from tests.forking import ForkedBroker

KILLS = 2


def test_every_log_is_complete_and_in_order_though_the_server_is_killed(tmp_path: Path) -> None:
    _check(tmp_path)


def test_every_log_is_complete_and_in_order_on_postgresql(tmp_path: Path, postgres: str) -> None:
    _check(tmp_path, f"--journal={url_of(postgres)}", "--lease-ms=500")


def _check(folder: Path, *flags: str) -> None:
    account = queue_crash.run(folder, KILLS, random.SystemRandom().randrange(2**32), *flags)
    assert account.problems == []
    assert account.stored == account.promised > 0
    assert account.broker_kills == {"server": KILLS, "gateway": 0}


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

"""The audit of real clients that are killed and started again, as is their broker: nothing may be found."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oncemq.spark.audit import audit
from oncemq.spark.audit.positions import read_positions
from oncemq.testing.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PRODUCE = """
import sys, oncemq
with oncemq.connect(sys.argv[1], record=sys.argv[2], timeout_s=0.3, tries=100) as client:
    for number in range(int(sys.argv[3])):
        client.put_many("orders", [b"%s %d %d" % (sys.argv[4].encode(), number, each) for each in range(20)])
"""
_CONSUME = """
import sys, oncemq
with oncemq.connect(sys.argv[1], record=sys.argv[2], timeout_s=0.3, tries=100) as client:
    with client.subscription("orders", "billing") as billing:
        while True:
            for message in billing.messages(timeout_s=0.2):
                pass
"""
_WORK = """
import sys, oncemq
with oncemq.connect(sys.argv[1], record=sys.argv[2], timeout_s=0.3, tries=100) as client:
    with client.shared_subscription("orders", "workers") as workers:
        for task in workers:
            task.ack()
"""


def _run(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)])


def _become(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_clients_and_broker_that_are_killed_leave_nothing_to_find(
    spark: SparkSession, broker_process: BrokerProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "records"
    broker_process.start()
    url = broker_process.url
    with broker_process.connect() as client:
        client.subscribe("orders", "billing")
        client.subscribe_shared("orders", "workers", lease_s=1)
    running = [_run(_PRODUCE, url, folder, 10**6, "killed"), _run(_CONSUME, url, folder), _run(_WORK, url, folder)]
    try:
        # All three have begun, and so have something to lose.
        _become(lambda: _end_of(broker_process) > 500 and len(list(folder.glob("*.ndjson"))) == 3)
        broker_process.kill()
        broker_process.start()
        end = _end_of(broker_process)
        _become(lambda: _end_of(broker_process) > end + 500)
        for process in running:
            process.kill()
        last = _run(_PRODUCE, url, folder, 20, "last")
        running += [last, _run(_CONSUME, url, folder), _run(_WORK, url, folder)]
        assert last.wait(60) == 0
        _become(lambda: _lag_of(broker_process) == 0)
    finally:
        for process in running:
            process.kill()
            process.wait()
    with broker_process.connect() as client:
        positions = read_positions(client)
    report = audit(spark, str(folder), complete=True, positions=positions)
    assert report.is_proved, report.summaries
    billing, workers = report.subscriptions
    assert (billing.subscriber, workers.subscriber, workers.shared) == ("billing", "workers", True)
    [end] = positions.end_offsets.values()
    assert billing.consumed == workers.consumed == end
    assert report.files == 6


def _end_of(broker: BrokerProcess) -> int:
    with broker.connect() as client:
        return client.topics()[0].end_offset


def _lag_of(broker: BrokerProcess) -> int:
    with broker.connect() as client:
        return sum(each.lag for each in client.subscriptions())

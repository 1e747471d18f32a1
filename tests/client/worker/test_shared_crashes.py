"""A shared subscription when brokers and consumers die."""

from __future__ import annotations

import subprocess
import sys

import pytest

import oncemq
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.transports import EACH_TRANSPORT


def lag(client: oncemq.Client) -> int:
    return client.subscriptions("t")[0].lag


@EACH_TRANSPORT
def test_a_broker_that_is_killed_neither_loses_nor_doubles_a_task(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=0.3, tries=100) as client:
        workers = client.subscribe_shared("t", "s")
        client.put_many("t", map(str, range(20_000)))
        got = []
        for task in workers.tasks(timeout_s=0):
            got.append((int(task.text), task.tries))
            task.ack()
            if len(got) in (1000, 5000, 11_111):
                oncemq_broker.restart()
        assert sorted(got) == [(index, 1) for index in range(20_000)]
        workers.flush()
        assert (lag(client), workers.lost) == (0, 0)


@EACH_TRANSPORT
def test_what_was_settled_while_the_broker_was_away_is_settled_when_it_is_back(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=0.1, tries=2) as client:
        workers = client.subscribe_shared("t", "s")
        client.put_many("t", ["a", "b", "c"])
        one, two, three = workers.take_many(3)
        oncemq_broker.kill()
        one.ack()
        with pytest.raises(errors.BrokerAway):
            two.ack(wait=True)
        with pytest.raises(errors.BrokerAway):
            workers.flush()
        with pytest.raises(errors.BrokerAway):
            workers.take()
        three.nack()
        oncemq_broker.start()
        again = workers.take(timeout_s=10)
        assert again is not None
        assert (again.text, again.tries) == ("c", 2)
        again.ack()
        workers.flush()
        assert (lag(client), workers.lost) == (0, 0)


def test_a_letter_is_sent_when_the_broker_is_back(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=0.1, tries=2) as client:
        workers = client.subscribe_shared("t", "s", tries_max=5)
        client.put_many("t", ["a", "b"])
        one, two = workers.take_many(2)
        oncemq_broker.kill()
        one.reject()
        with pytest.raises(errors.BrokerAway):
            workers.flush()
        two.reject()
        oncemq_broker.start()
        workers.flush()
        assert sorted(letter.text for letter in client.dead_letters("t.dead")) == ["a", "b"]
        assert lag(client) == 0


_WORKER = """
import sys, oncemq
workers = oncemq.connect(sys.argv[1]).shared_subscription("t", "s")
tasks = workers.take_many(10, timeout_s=30)
tasks[0].ack(wait=True)
print(len(tasks), flush=True)
sys.stdin.read()
"""


def test_what_a_dead_consumer_had_goes_to_others(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect() as client:
        workers = client.subscribe_shared("t", "s", lease_s=1)
        client.put_many("t", map(str, range(10)))
        command = [sys.executable, "-c", _WORKER, oncemq_broker.url]
        dying = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert dying.stdout is not None
            assert int(dying.stdout.readline()) == 10
            # It lives, and so do its leases.
            assert workers.take(timeout_s=2) is None
        finally:
            dying.kill()
            dying.communicate()
        got: list[tuple[str, int]] = []
        while len(got) < 9:
            task = workers.take(timeout_s=30)
            assert task is not None
            got.append((task.text, task.tries))
            task.ack()
        assert sorted(got) == [(str(index), 2) for index in range(1, 10)]
        workers.flush()
        assert lag(client) == 0

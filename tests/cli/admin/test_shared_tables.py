"""`oncemq keys` and `oncemq registry`: who uses how much of the shared tables, and how entries are freed."""

from __future__ import annotations

import json

import zmq

from oncemq.protocol.commands import Keyed, Void
from oncemq.protocol.frames import encode_request
from oncemq.testing.broker_process import BrokerProcess
from tests.cli.shell import Shell


def _use_keys(url: str, principal: str, count: int) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(url)
        socket.send_multipart(encode_request(1, [Keyed(principal, f"k{number:02}", Void()) for number in range(count)]))
        assert socket.poll(10_000)


def test_keys_are_listed_and_freed(shell: Shell, broker: BrokerProcess) -> None:
    _use_keys(broker.url, "loadtest", 12)
    _use_keys(broker.url, "shop", 1)
    shares = [json.loads(line) for line in shell.ok("keys", "ls", "--json").splitlines()]
    assert {"owner": "loadtest", "entries": 12} in shares
    assert b"loadtest" in shell.ok("keys")
    shell.ok("keys", "rm", "--principal", "loadtest", "k00", "k01", "--yes")
    listed = [
        json.loads(line)["key"] for line in shell.ok("keys", "ls", "--principal", "loadtest", "--json").splitlines()
    ]
    assert listed == [f"k{number:02}" for number in range(2, 12)]
    freed = json.loads(shell.ok("keys", "rm", "--principal", "loadtest", "--all", "--yes", "--json"))
    assert freed == {"principal": "loadtest", "keys": 10}
    assert b"loadtest" not in shell.ok("keys")
    assert b"shop" in shell.ok("keys")


def test_registry_entries_are_listed_and_deleted(shell: Shell, broker: BrokerProcess) -> None:
    with broker.connect() as client:
        for number in range(5):
            client.registry_set("queue", f"producer/P{number}", b"{}")
        client.registry_set("queue", "consumer/C1", b"{}")
    assert b"queue" in shell.ok("registry")
    shell.ok("registry", "rm", "queue", "producer/P0", "--yes")
    shell.ok("registry", "rm", "queue", "--prefix", "producer/", "--yes")
    left = [json.loads(line) for line in shell.ok("registry", "ls", "queue", "--json").splitlines()]
    assert left == [{"key": "consumer/C1", "version": 1, "bytes": 2}]

"""`oncemq keys` and `oncemq registry`: who uses how much of the shared tables, and how entries are freed."""

from __future__ import annotations

import json

from oncemq.protocol.commands import Keyed, Void
from oncemq.protocol.frames import encode_request
from oncemq.protocol.limits import REMOVED_KEYS_MAX
from oncemq.testing.broker_process import BrokerProcess
from tests.cli.shell import Shell
from tests.stream_peer import StreamPeer


def _use_keys(url: str, principal: str, count: int) -> None:
    with StreamPeer(url) as peer:
        peer.send(encode_request(1, [Keyed(principal, f"k{number:02}", Void()) for number in range(count)]))
        assert peer.receive()


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


def test_a_key_that_does_not_exist_is_not_freed(shell: Shell, broker: BrokerProcess) -> None:
    _use_keys(broker.url, "importer", 2)
    for principal, keys, unknown in (("nobody", ("k1",), b"'k1'"), ("importer", ("k00", "k99"), b"'k99'")):
        done = shell.run("keys", "rm", "--principal", principal, *keys, "--yes")
        assert (done.returncode, done.stdout) == (4, b"")
        assert unknown in done.stderr
        assert b"oncemq keys ls --principal" in done.stderr
    assert shell.ok("keys", "rm", "--principal", "importer", "k00", "k00", "--yes") == b"Freed 1 key of importer.\n"
    assert shell.ok("keys", "rm", "--principal", "nobody", "--all", "--yes") == b"Freed 0 keys of nobody.\n"


def test_an_entry_that_does_not_exist_is_not_deleted(shell: Shell, broker: BrokerProcess) -> None:
    with broker.connect() as client:
        client.registry_set("push", "one", b"{}")
    done = shell.run("registry", "rm", "push", "one", "two", "--yes")
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"'two'" in done.stderr
    assert b"oncemq registry ls" in done.stderr
    assert shell.ok("registry", "rm", "push", "one", "--yes") == b"Deleted 1 entry of push.\n"


def test_more_keys_are_freed_than_one_command_may_name(shell: Shell, broker: BrokerProcess) -> None:
    _use_keys(broker.url, "flood", 2 * REMOVED_KEYS_MAX + 1)
    assert shell.ok("keys", "rm", "--principal", "flood", "--all", "--yes") == b"Freed 2,001 keys of flood.\n"
    assert b"flood" not in shell.ok("keys")

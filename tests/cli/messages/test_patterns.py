"""Patterns, headers, quotas, delays and times to live on the command line, against a real broker."""

from __future__ import annotations

import json

from tests.cli.shell import Shell


def test_a_pattern_is_subscribed_read_and_unsubscribed(shell: Shell) -> None:
    pattern, topic = f"{shell.topic}.*", f"{shell.topic}.eu"
    assert shell.ok("sub", pattern, "audit") == f"Subscribed audit to {pattern}.\n".encode()
    assert b"nothing has changed" in shell.ok("sub", pattern, "audit")
    assert shell.run("get", pattern, "audit").returncode == 3
    shell.ok("put", topic, "one", "--create")
    shell.ok("put", topic, "two")
    assert shell.ok("get", pattern, "audit", "--no-ack") == b"one\n"
    assert shell.ok("get", pattern, "audit", "--format", "{topic} {value}") == f"{topic} one\n".encode()
    assert shell.ok("get", pattern, "audit", "--count", "5") == b"two\n"
    assert shell.ok("unsub", pattern, "audit") == f"Unsubscribed audit from {pattern}.\n".encode()
    assert shell.run("get", pattern, "audit").returncode == 5
    assert shell.run("unsub", pattern, "audit").returncode == 5


def test_topics_with_only_a_pattern_subscription_are_deleted_with_it(shell: Shell) -> None:
    pattern, topic = f"{shell.topic}.*", f"{shell.topic}.eu"
    shell.ok("sub", pattern, "audit")
    shell.ok("sub", topic, "alice")
    shell.ok("put", topic, "one")
    assert b"is gone" not in shell.ok("unsub", topic, "alice")
    assert f"{topic} is deleted, with 1 message.".encode() in shell.ok("unsub", pattern, "audit")


def test_a_pattern_begins_at_a_time(shell: Shell) -> None:
    pattern, topic = f"{shell.topic}.*", f"{shell.topic}.eu"
    shell.ok("topics", "create", topic, "--retain", "1d")
    shell.ok("put", topic, "old")
    shell.ok("sub", pattern, "all", "--from", "-1h")
    shell.ok("sub", pattern, "none", "--from", "2100-01-01")
    assert shell.ok("get", pattern, "all") == b"old\n"
    assert shell.run("get", pattern, "none").returncode == 3
    assert shell.run("sub", pattern, "wrong", "--from", "7").returncode == 2


def test_subscriptions_are_listed_with_patterns_and_sharing(shell: Shell) -> None:
    pattern, topic = f"{shell.topic}.*", f"{shell.topic}.eu"
    shell.ok("sub", pattern, "audit")
    assert [entry["topics"] for entry in shell.objects("subs", pattern)] == [0]
    shell.ok("sub", topic, "packers", "--shared", "--lease", "5s", "--tries-max", "3", "--key-order")
    shell.ok("sub", topic, "alice")
    shell.ok("put", topic, "one")
    entries = {entry["subscriber"]: entry for entry in shell.objects("subs", topic)}
    assert {name: entry["lag"] for name, entry in entries.items()} == {"alice": 1, "audit": 1, "packers": 1}
    assert entries["audit"]["pattern"] == pattern
    sharing = {"lease_ms": 5000, "tries_max": 3, "dead_topic": f"{topic}.dead", "key_order": True}
    assert entries["packers"]["sharing"] == sharing
    lines = shell.ok("subs", topic).decode().splitlines()
    heads = ["TOPIC", "SUBSCRIBER", "ACKED", "END", "LAG", "PATTERN", "LEASED", "WORKERS", "DEAD", "LETTERS"]
    assert lines[0].split() == heads
    assert [line.split() for line in shell.ok("subs", pattern).decode().splitlines()][-2:] == [
        ["PATTERN", "SUBSCRIBER", "TOPICS", "LAG"],
        [*pattern.split(), "audit", "1", "1"],
    ]


def test_get_skips_messages_without_the_header(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(100)
    shell.ok("put", shell.topic, "wanted", "--header", "kind=a")
    shell.ok("put", shell.topic, "not wanted", "--header", "kind=b")
    assert shell.ok("get", shell.topic, "alice", "--header", "kind=a") == b"wanted\n"
    assert shell.subscription()["acked"] == 101
    assert shell.run("get", shell.topic, "alice", "--header", "kind=a").returncode == 3
    assert shell.subscription()["lag"] == 0
    tailed = shell.ok("tail", shell.topic, "--no-follow", "--header", "kind=b")
    assert tailed == b""


def test_a_delayed_message_is_delivered_after_the_delay(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    said = shell.ok("put", shell.topic, "far", "--delay", "1h")
    assert said == f"Stored 1 message in {shell.topic} for delivery in 1 h, for 1 subscription.\n".encode()
    near = json.loads(shell.ok("put", shell.topic, "near", "--delay", "200ms", "--json"))
    assert (near["messages"], near["first_offset"], near["last_offset"]) == (1, None, None)
    assert shell.ok("get", shell.topic, "alice", "--wait", "30") == b"near\n"
    assert shell.run("get", shell.topic, "alice").returncode == 3
    [listed] = [entry for entry in shell.objects("topics") if entry["name"] == shell.topic]
    assert listed["delayed"] == 1
    assert b"DELAYED" in shell.ok("topics")


def test_a_message_is_not_delivered_after_its_time_to_live(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.ok("put", shell.topic, stdin=b"a\nb\n")
    shell.ok("put", shell.topic, "short", "--ttl", "1ms")
    shell.ok("put", shell.topic, "long", "--ttl", "1h")
    assert shell.ok("get", shell.topic, "alice", "--count", "9") == b"a\nb\nlong\n"


def test_a_topic_has_a_quota_and_alter_keeps_other_settings(shell: Shell) -> None:
    done = shell.run("topics", "create", shell.topic, "--quota", "1MiB", "--retain", "2d")
    assert (done.returncode, b"Add `--overflow drop`" in done.stderr) == (4, True)
    shell.ok("topics", "create", shell.topic, "--quota", "1MiB", "--overflow", "drop", "--retain", "2d")
    assert shell.run("topics", "create", shell.topic, "--quota", "2MiB").returncode == 4
    assert b"settings are changed" in shell.ok("topics", "create", shell.topic, "--quota", "2MiB", "--alter")
    [listed] = [entry for entry in shell.objects("topics") if entry["name"] == shell.topic]
    assert (listed["quota_bytes"], listed["overflow"], listed["retain_ms"]) == (2 << 20, "drop", 2 * 86_400_000)
    assert b"2.0 MiB, drop" in shell.ok("topics")
    assert b"changed" not in shell.ok("topics", "create", shell.topic, "--quota", "2MiB", "--alter")


def test_messages_dropped_by_a_quota_are_reported(shell: Shell) -> None:
    shell.ok("topics", "create", shell.topic, "--quota", "10KiB", "--overflow", "drop")
    shell.ok("sub", shell.topic, "alice")
    for _ in range(3):
        shell.ok("put", shell.topic, "x" * 6000)
    assert shell.subscription()["dropped"] == 2
    assert b"DROPPED" in shell.ok("subs", shell.topic)

"""`oncemq seek` against a real broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.shell import Shell


@pytest.fixture
def numbers(shell: Shell) -> Shell:
    shell.ok("topics", "create", shell.topic, "--retain", "1d")
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(5)
    return shell


def test_a_subscription_is_moved_forward_and_back(numbers: Shell) -> None:
    said = numbers.ok("seek", numbers.topic, "alice", "3")
    assert said == f"Moved alice on {numbers.topic} to offset 3: 2 messages to deliver.\n".encode()
    assert numbers.ok("get", numbers.topic, "alice", "--count", "9") == b"3\n4\n"
    assert numbers.objects("seek", numbers.topic, "alice", "earliest") == [
        {"topic": numbers.topic, "subscriber": "alice", "offset": 0, "lag": 5}
    ]
    assert numbers.ok("get", numbers.topic, "alice") == b"0\n"
    for word in ("new", "latest"):
        assert b"to offset 5: 0 messages to deliver" in numbers.ok("seek", numbers.topic, "alice", word)


def test_a_subscription_is_moved_to_a_time(numbers: Shell) -> None:
    hour = timedelta(hours=1)
    before, later = ((datetime.now(UTC) + by).isoformat() for by in (-hour, hour))
    for moment, offset in ((before, 0), (later, 5), ("-2h", 0), ("-0s", 5)):
        [moved] = numbers.objects("seek", numbers.topic, "alice", moment)
        assert moved["offset"] == offset


def test_a_pattern_is_moved_on_all_its_topics(shell: Shell) -> None:
    pattern = f"{shell.topic}.*"
    shell.ok("sub", pattern, "audit")
    for level in ("a", "b"):
        shell.ok("topics", "create", f"{shell.topic}.{level}", "--retain", "1d")
        shell.ok("put", f"{shell.topic}.{level}", level)
    assert sorted(shell.ok("get", pattern, "audit", "--count", "9").splitlines()) == [b"a", b"b"]
    said = shell.ok("seek", pattern, "audit", "-1h")
    assert said == f"Moved audit on {pattern}, 2 topics: 2 messages to deliver.\n".encode()
    assert shell.run("seek", pattern, "audit", "1").returncode == 4
    assert [entry["lag"] for entry in shell.objects("seek", pattern, "audit", "new")] == [0]


def test_an_unknown_subscription_can_not_be_moved(numbers: Shell) -> None:
    assert numbers.run("seek", numbers.topic, "bob", "new").returncode == 5
    assert numbers.run("seek", "nowhere", "alice", "new").returncode == 5
    assert numbers.run("seek", numbers.topic, "alice", "6").returncode == 4
    assert numbers.subscription()["acked"] == 0


def test_help_is_not_mistaken_for_a_time(shell: Shell) -> None:
    assert b"Usage:" in shell.ok("seek", "-h")

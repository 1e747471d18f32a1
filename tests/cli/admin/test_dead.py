"""`oncemq dead` against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import oncemq
from oncemq.testing.broker_process import BrokerProcess
from tests.cli.shell import Shell

Bury = Callable[..., str]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[oncemq.Client]:
    with broker.connect() as client:
        yield client


@pytest.fixture
def bury(shell: Shell, client: oncemq.Client) -> Bury:
    """Turns values into dead letters, and returns the name of their topic."""

    def bury(*values: str) -> str:
        with client.subscribe_shared(shell.topic, "packers", tries_max=1) as workers:
            for value in values:
                client.put(shell.topic, value, key="k", headers={"a": "1"})
                task = workers.take(timeout_s=30)
                assert task is not None
                task.reject("exit code 7")
        return f"{shell.topic}.dead"

    return bury


def offsets(client: oncemq.Client, topic: str) -> list[int]:
    return [letter.message.offset for letter in client.dead_letters(topic)]


def test_dead_letters_are_listed_with_their_origin(shell: Shell, bury: Bury) -> None:
    dead = bury("one\npizza", "two")
    letters = shell.objects("dead")
    letter = next(each for each in letters if each["dead_topic"] == dead)
    expected = {
        "offset": 0,
        "from_topic": shell.topic,
        "from_offset": 0,
        "subscriber": "packers",
        "tries": 1,
        "reason": "exit code 7",
        "key": "k",
        "headers": {"a": "1"},
        "value": "one\npizza",
    }
    assert {name: letter[name] for name in expected} == expected
    lines = shell.ok("dead", "ls", dead).decode().splitlines()
    assert len(lines) == 3
    assert f"{shell.topic}/0" in lines[1]
    assert lines[1].endswith(r"one\npizza")


def test_letters_are_put_back_once_and_the_others_are_kept(shell: Shell, client: oncemq.Client, bury: Bury) -> None:
    dead = bury("a", "b", "c")
    assert shell.ok("dead", "retry", dead, "1") == b"Put 1 dead letter back.\n"
    assert offsets(client, dead) == [0, 2]
    done = shell.run("dead", "retry", dead, "1")
    assert done.returncode == 4
    assert b"no dead letter at offset 1" in done.stderr
    assert shell.objects("dead", "retry", dead, "--all") == [{"topic": dead, "retried": 2, "failed": []}]
    assert offsets(client, dead) == []
    done = shell.run("work", shell.topic, "packers", "--count", "3", "--", "cat")
    assert (done.returncode, done.stdout) == (0, b"bac")
    assert shell.ok("dead", "retry", dead, "--all") == b"Put 0 dead letters back.\n"


def test_a_letter_whose_topic_was_deleted_is_kept(shell: Shell, client: oncemq.Client, bury: Bury) -> None:
    dead = bury("a", "b")
    shell.ok("topics", "rm", shell.topic, "--yes")
    done = shell.run("dead", "retry", dead, "--all")
    assert (done.returncode, done.stdout) == (1, b"Put 0 dead letters back.\n")
    assert b"offset 0 was not put back" in done.stderr
    assert offsets(client, dead) == [0, 1]


def test_a_retry_names_the_other_subscriptions_that_get_the_letters_too(
    shell: Shell, client: oncemq.Client, bury: Bury
) -> None:
    dead = bury("a", "b")
    client.subscribe(shell.topic, "billing")
    done = shell.run("dead", "retry", dead, "0")
    assert (done.returncode, done.stdout) == (0, b"Put 1 dead letter back.\n")
    said = f"{shell.topic} has 2 subscriptions, and each gets this message again: billing, packers."
    assert said in done.stderr.decode()
    client.unsubscribe(shell.topic, "billing")
    assert shell.run("dead", "retry", dead, "1").stderr == b""


def test_letters_are_deleted_after_a_confirmation(shell: Shell, client: oncemq.Client, bury: Bury) -> None:
    dead = bury("a", "b", "c")
    assert shell.run("dead", "rm", dead, "0", stdin=b"n\n").returncode == 1
    assert offsets(client, dead) == [0, 1, 2]
    assert shell.ok("dead", "rm", dead, "1", stdin=b"y\n") == b"Deleted 1 dead letter.\n"
    assert offsets(client, dead) == [0, 2]
    assert shell.objects("dead", "rm", dead, "--all", "--yes") == [{"topic": dead, "removed": 2}]
    assert offsets(client, dead) == []


def test_an_ordinary_topic_is_refused_and_its_dead_letter_topic_is_named(shell: Shell, bury: Bury) -> None:
    dead = bury("a")
    for command in (("ls",), ("retry", "--all"), ("rm", "--all", "--yes")):
        done = shell.run("dead", command[0], shell.topic, *command[1:])
        assert done.returncode == 5
        assert dead.encode() in done.stderr
    assert shell.run("dead", "ls", "nowhere").returncode == 5

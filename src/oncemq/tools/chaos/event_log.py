"""What each process says it did. One write per entry, so that SIGKILL leaves whole entries behind.

    publisher    will        TOPIC  ID            before the put
                 done        TOPIC  ID  OFFSET    the put was answered; -1: it is in the outbox, which is a promise too
    subscriber   subscribed  TOPIC  OFFSET        where the subscription begins
                 got         TOPIC  OFFSET  ID    a message was processed
                 ended       TOPIC                the subscription was ended
    auditor      stored      TOPIC  OFFSET  ID    what the broker holds in the end
                 end         TOPIC  OFFSET
    all          error       TEXT                 something that must not happen

Fields are separated by tabs: topics may hold spaces, and no name holds a tab.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import xxhash

from oncemq.protocol.errors import Malformed


class Diary:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, *entries: tuple[object, ...]) -> None:
        os.write(self._descriptor, "".join("\t".join(map(str, entry)) + "\n" for entry in entries).encode())


def read(path: Path) -> Iterator[list[str]]:
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield line.rstrip("\n").split("\t")


def message_id(publisher: str, life: int, number: int) -> str:
    return f"{publisher}.{life}.{number}"


def place_of(message: str) -> tuple[str, int, int]:
    """(publisher, life, number): within a publisher and topic they rise. Raises ValueError for what is not ours."""
    publisher, life, number = message.rsplit(".", 2)
    return publisher, int(life), int(number)


def value_of(message: str) -> bytes:
    """A message's bytes follow from its id, so that every one of them can be checked."""
    return f"{message} {xxhash.xxh3_64_hexdigest(message.encode())}".encode()


def id_of(value: bytes) -> str:
    """Raises Malformed unless the value is one of ours, to the last byte."""
    message = value.partition(b" ")[0].decode("utf-8", "replace")
    if value_of(message) != value:
        raise Malformed(f"a damaged value: {value[:80]!r}")
    return message


def values_of(messages: Iterable[str]) -> list[bytes]:
    return [value_of(message) for message in messages]

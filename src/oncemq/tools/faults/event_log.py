"""What each process did. Entries are appended with one write, so that SIGKILL leaves complete entries.

    producer     attempted     TOPIC  MESSAGE           before the put
                 acknowledged  TOPIC  MESSAGE  OFFSET   the put was answered; -1: the answer has no offset
    consumer     subscribed    TOPIC  OFFSET            where the subscription starts
                 started       NUMBER                   a new process continues the subscriptions
                 delivered     TOPIC  OFFSET  MESSAGE   a message was processed
                 acked         TOPIC  OFFSET            an ack up to this offset was answered
                 unsubscribed  TOPIC                    the subscription was deleted
    auditor      stored        TOPIC  OFFSET  MESSAGE   what the broker holds at the end
                 end           TOPIC  OFFSET
    all          error         TEXT                     something that must not happen

Fields are separated by tabs: topics may contain spaces, and no name contains a tab. A message is logged as its id, and
its value follows from its id, so that every byte of it can be checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash

from oncemq.protocol.errors import Malformed

_FILLER_BYTES = (0, 10, 40, 200, 1000, 6000)


class EventLog:
    """A file that processes append entries to."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, *entries: tuple[object, ...]) -> None:
        """Append entries. After this, they survive the death of the process."""
        os.write(self._descriptor, "".join("\t".join(map(str, entry)) + "\n" for entry in entries).encode())

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Append an exception that ends the block. It makes the verdict bad."""
        try:
            yield
        except Exception as error:
            self.write(("error", f"{type(error).__name__}: {' '.join(str(error).split())}"))
            raise


def read_events(path: Path) -> Iterator[list[str]]:
    """Yield the entries of a log; nothing if it does not exist."""
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield line.rstrip("\n").split("\t")


class MessageStream:
    """The messages of one producer, with rising numbers. Attempts and acknowledgements are logged."""

    def __init__(self, log: EventLog, name: str) -> None:
        self._log = log
        self._name = name
        self.next_number = 0

    def attempt(self, topic: str, count: int) -> list[str]:
        """Return the ids of the next messages."""
        numbers = range(self.next_number, self.next_number + count)
        self.next_number += count
        messages = [f"{self._name}.{number:06}" for number in numbers]
        self._log.write(*(("attempted", topic, message) for message in messages))
        return messages

    def acknowledge(self, topic: str, messages: Sequence[str], first_offset: int = -1) -> None:
        """Log that messages with consecutive offsets were acknowledged. -1: their offsets are not known."""
        offsets = (-1 if first_offset < 0 else first_offset + index for index in range(len(messages)))
        self._log.write(*(("acknowledged", topic, *pair) for pair in zip(messages, offsets, strict=True)))


def value_of(message: str) -> bytes:
    """Return the value of a message with this id. Its size depends on the id."""
    digest = xxhash.xxh3_64_digest(message.encode())
    size = _FILLER_BYTES[digest[0] % len(_FILLER_BYTES)]
    return message.encode() + b"|" + (digest * (size // 8 + 1))[:size]


def id_of(value: bytes) -> str:
    """Return the id of a message. Raises Malformed unless every byte of the value is as `value_of` made it."""
    message = value.partition(b"|")[0].decode("utf-8", "replace")
    if value_of(message) != value:
        raise Malformed(f"a damaged value: {value[:80]!r}")
    return message

"""Record files made by hand: what clients would have written of a run in which something went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from oncemq.client.recording import records
from oncemq.client.recording.records import Line, Range

BROKER = "b"


def digest(topic_id: int, offset: int) -> int:
    return topic_id * 1_000_000 + offset


class PlantedRecords:
    """One client's file. Times are minutes apart, so that no clock is in doubt."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.ndjson"
        self._name = name
        self._lines: list[bytes] = []
        self._now_ms = 1_000_000
        self.add(records.Begin(session=name, pid=1, host="here", software="test"))

    def add(self, line: Line) -> None:
        line.seq, line.at_ms = len(self._lines), self._now_ms
        self._now_ms += 60_000
        self._lines.append(msgspec.json.encode(line))
        self._path.write_bytes(b"\n".join(self._lines) + b"\n")

    def tear(self) -> None:
        """The process was killed while it wrote."""
        self._path.write_bytes(self._path.read_bytes() + b'{"kind":"got","seq":99,"ranges":[[0')

    def lose_line(self, seq: int) -> None:
        """Somebody has damaged the file."""
        self._lines[seq] = b'{"kind":"go'
        self._path.write_bytes(b"\n".join(self._lines) + b"\n")

    # Puts.

    def sent(self, number: int, topic_id: int, first: int, count: int, **more: Any) -> None:
        digests = [digest(topic_id, offset) for offset in range(first, first + count)]
        topic = f"t{topic_id}"
        self.add(records.Sent(session=self._name, number=number, topic=topic, count=count, digests=digests, **more))

    def stored(self, number: int, topic_id: int, first: int, count: int) -> None:
        put: dict[str, Any] = {"session": self._name, "number": number, "topic": f"t{topic_id}"}
        self.add(records.Stored(**put, broker=BROKER, topic_id=topic_id, first=first, count=count))

    def put(self, number: int, topic_id: int, first: int, count: int, **more: Any) -> None:
        self.sent(number, topic_id, first, count, **more)
        self.stored(number, topic_id, first, count)

    # Deliveries.

    def opened(self, topic_id: int, epoch: int, acked: int, *, shared: bool = False) -> None:
        self.add(
            records.Opened(
                **_whose(topic_id), topic=f"t{topic_id}", epoch=epoch, acked=acked, shared=shared, sent_ms=self._now_ms
            )
        )

    def got(self, topic_id: int, epoch: int, *ranges: Range, changed: Sequence[int] = (), **more: Any) -> None:
        offsets = [offset for first, count in ranges for offset in range(first, first + count)]
        digests = [digest(topic_id, offset) + (offset in changed) for offset in offsets]
        self.add(
            records.Got(
                **_whose(topic_id), topic=f"t{topic_id}", epoch=epoch, ranges=list(ranges), digests=digests, **more
            )
        )

    def acked(self, topic_id: int, epoch: int, acked: int, **more: Any) -> None:
        self.add(records.Acked(**_whose(topic_id), epoch=epoch, acked=acked, **more))

    def settled(self, topic_id: int, epoch: int, *done: tuple[int, int, int]) -> None:
        self.add(records.Settled(**_whose(topic_id), epoch=epoch, done=list(done)))

    def skipped(self, topic_id: int, epoch: int, *ranges: Range) -> None:
        self.add(records.Skipped(**_whose(topic_id), epoch=epoch, ranges=list(ranges)))

    def back(self, topic_id: int, epoch: int, to: int) -> None:
        self.add(records.Back(**_whose(topic_id), epoch=epoch, to=to))

    def sought(self, number: int, topic_id: int, to: int) -> None:
        move: dict[str, Any] = {"session": self._name, "number": number, "what": "seek", "subscriber": "s"}
        move["topic"] = f"t{topic_id}"
        self.add(records.Moving(**move))
        self.add(records.Moved(**move, broker=BROKER, acked=to, sent_ms=self._now_ms - 60_000))


def _whose(topic_id: int) -> dict[str, Any]:
    return {"broker": BROKER, "topic_id": topic_id, "subscriber": "s"}

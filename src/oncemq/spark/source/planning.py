"""Plans tasks and micro-batches by rows and by bytes. The broker knows the size of a range without reading it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import Measure
from oncemq.protocol.replies import MeasureReply
from oncemq.spark.source.limit_options import BatchLimits, TaskLimits
from oncemq.spark.source.ranges import Extent, Range, admit, divide, limit_rows

#: A task with fewer rows and fewer bytes costs more to start than it saves.
TASK_ROWS_MIN = 10_000
TASK_BYTES_MIN = 8 * 1024 * 1024
#: Ends of batches that are considered for the end of a task.
_CUTS_PER_TASK = 16
_CUT_BYTES_MIN = 64 * 1024


def measure(client: Client, wanted: Range, part_bytes: int = 0, *, parts_max: int = 0) -> Extent:
    """Measure a range, in parts of at least `part_bytes`. Messages that are gone count as nothing.

    With `parts_max`, measuring may end when as many parts are found."""
    size = time_ms = 0
    parts: list[tuple[int, int]] = []
    start = wanted.start
    while start < wanted.stop and not 0 < parts_max <= len(parts):
        command = Measure(wanted.topic, start, wanted.stop, part_bytes, wanted.topic_id)
        try:
            found = internal_api(client).ask(command, MeasureReply)
        except (errors.TopicGone, errors.TopicUnknown):
            break
        size += found.bytes
        time_ms = time_ms or found.time_ms
        parts += found.parts
        start = found.next_position
    return Extent(size, time_ms, parts)


def plan_tasks(client: Client, ranges: Iterable[Range], limits: TaskLimits) -> list[Range]:
    """Divide ranges into tasks that cost about the same. The ranges of each topic stay in order."""
    wanted = [each for each in ranges if each.count]
    extents = [measure(client, each) for each in wanted]
    rows, size = sum(each.count for each in wanted), sum(each.bytes for each in extents)
    tasks = _task_count(limits, rows, size)
    found: list[Range] = []
    for each, extent in zip(wanted, extents, strict=True):
        share = max(each.count / rows, extent.bytes / size if size else 0.0)
        count = max(1, round(tasks * share), -(-extent.bytes // limits.bytes_max) if limits.bytes_max else 1)
        if count > 1:
            part_bytes = max(_CUT_BYTES_MIN, extent.bytes // (count * _CUTS_PER_TASK))
            found += divide(each, measure(client, each, part_bytes), count)
        else:
            found.append(each)
    return limit_rows(found, limits.rows_max) if limits.rows_max else found


def _task_count(limits: TaskLimits, rows: int, size: int) -> int:
    if limits.tasks_min:
        return max(limits.tasks_min, 1)
    return min(limits.tasks or os.cpu_count() or 1, max(1, rows // TASK_ROWS_MIN, size // TASK_BYTES_MIN))


class Admission:
    """Decides how much of what is waiting the next micro-batch reads."""

    def __init__(self, limits: BatchLimits, now_s: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now_s = now_s
        #: When the last micro-batch was planned.
        self._last_s: float | None = None

    def default_limit(self) -> ReadLimit:
        """One of the limits. Spark passes it back, unless the trigger reads everything at once."""
        limits = self._limits
        if limits.rows_max:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max:
            return ReadMaxBytes(limits.bytes_max)
        return ReadMinRows(limits.rows_min) if limits.rows_min else ReadAllAvailable()

    def admit(self, client: Client, waiting: Sequence[Range], limit: ReadLimit, *, may_wait: bool) -> dict[str, int]:
        """How many messages of each topic the next micro-batch reads; all are 0 if it is put off."""
        counts = {each.topic: each.count for each in waiting}
        if may_wait and self._is_put_off(sum(counts.values()), limit):
            return dict.fromkeys(counts, 0)
        if isinstance(limit, ReadMaxRows):
            counts = admit(counts, limit.max_rows)
        if self._limits.bytes_max and not isinstance(limit, ReadAllAvailable):
            counts = _within_bytes(client, waiting, counts, self._limits.bytes_max)
        if any(counts.values()):
            self._last_s = self._now_s()
        return counts

    def _is_put_off(self, rows: int, limit: ReadLimit) -> bool:
        if isinstance(limit, ReadAllAvailable) or rows >= self._limits.rows_min or self._last_s is None:
            return False
        return self._now_s() - self._last_s < self._limits.delay_max_ms / 1000


def _within_bytes(
    client: Client, waiting: Sequence[Range], counts: Mapping[str, int], bytes_max: int
) -> dict[str, int]:
    """Reduce the counts to about `bytes_max`: each topic gets its share, which ends with a stored batch."""
    wanted = [msgspec.structs.replace(each, stop=each.start + counts[each.topic]) for each in waiting]
    sizes = [measure(client, each).bytes for each in wanted]
    total = sum(sizes)
    if total <= bytes_max:
        return dict(counts)
    found = dict(counts)
    for each, size in zip(wanted, sizes, strict=True):
        parts = measure(client, each, max(1, bytes_max * size // total), parts_max=1).parts
        if parts:
            found[each.topic] = parts[0][0] - each.start
    return found


def lag_report(client: Client, unread: Sequence[Range]) -> dict[str, Any]:
    """What waits, for the progress of a query."""
    extents = [measure(client, each) for each in unread if each.count]
    report: dict[str, Any] = {
        "lag": sum(each.count for each in unread),
        "lagBytes": sum(each.bytes for each in extents),
    }
    times_ms = [each.time_ms for each in extents if each.time_ms]
    if times_ms:
        report["oldestUnread"] = datetime.fromtimestamp(min(times_ms) / 1000, UTC).isoformat(timespec="milliseconds")
    return report

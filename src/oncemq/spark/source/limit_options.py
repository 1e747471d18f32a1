"""The options that limit a micro-batch, and that divide a read into tasks."""

from __future__ import annotations

import msgspec

from oncemq.protocol import errors
from oncemq.spark.raw_options import RawOptions

_DELAY = "15m"
#: A task reads at most about this much unless options say otherwise.
_TASK_BYTES_MAX = 128 * 1024 * 1024

STREAM_LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay")
BATCH_LIMITS = ("partitions", "minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition")


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a micro-batch reads; 0 = no limit."""

    rows_max: int = 0
    #: A micro-batch ends with the stored batch that reaches this size.
    bytes_max: int = 0
    #: With fewer waiting messages, a micro-batch is put off for at most `delay_max_ms`.
    rows_min: int = 0
    delay_max_ms: int = 0


class TaskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Into how many tasks a read is divided; 0 = not given."""

    #: The number of tasks if there is enough to read for each of them. The default is the number of cores.
    tasks: int = 0
    #: The minimum, however little each task reads.
    tasks_min: int = 0
    rows_max: int = 0
    bytes_max: int = 0


def parse_limits(options: RawOptions) -> tuple[BatchLimits, TaskLimits]:
    """Raises SettingInvalid."""
    rows_max, rows_min = options.number("maxOffsetsPerTrigger"), options.number("minOffsetsPerTrigger")
    if rows_max and rows_min > rows_max:
        raise errors.SettingInvalid(
            f"'minOffsetsPerTrigger' is {rows_min}, which is more than 'maxOffsetsPerTrigger', {rows_max}"
        )
    if "maxTriggerDelay" in options and not rows_min:
        raise errors.SettingInvalid(
            "'maxTriggerDelay' limits how long 'minOffsetsPerTrigger' waits, which is not given"
        )
    if options.text("partitions") and options.text("minPartitions"):
        raise errors.SettingInvalid("'partitions' and 'minPartitions' are both given: choose one")
    batch = BatchLimits(
        rows_max=rows_max,
        bytes_max=options.byte_count("maxBytesPerTrigger"),
        rows_min=rows_min,
        delay_max_ms=options.duration_ms("maxTriggerDelay", _DELAY),
    )
    tasks = options.number("partitions")
    task = TaskLimits(
        tasks=tasks,
        tasks_min=options.number("minPartitions"),
        rows_max=options.number("maxRecordsPerPartition"),
        bytes_max=options.byte_count("maxBytesPerPartition") or (0 if tasks else _TASK_BYTES_MAX),
    )
    return batch, task

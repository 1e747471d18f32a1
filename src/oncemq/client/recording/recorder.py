"""Recording: a client writes down what it put and what it consumed, so that an audit can prove that nothing was lost,
duplicated or reordered (docs/audit.md). It is enabled by `record=` of `connect`, or by ONCEMQ_RECORD.

When each line is written, so that it is true wherever the process is killed:

    sent      before the put's first byte leaves. An intent without an answer: stored once, or not at all
    stored    when the answer is received, before the caller gets it
    got       before the application has the messages, and therefore before any ack can cover them
    acked     when the broker's answer is received: never before it is true
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from oncemq.client.core.commands.observer import Observer, SubscriptionEpoch
from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.recording.file import RecordFile
from oncemq.client.recording.operations import OperationRecorder, number_of
from oncemq.client.recording.positions import PositionRecorder
from oncemq.client.recording.records import Back, Got, Left, digests_of, epoch_fields, ranges_between, ranges_of
from oncemq.protocol.message import Message
from oncemq.protocol.replies import Reply


class Recorder(Observer):
    """An observer that writes to a file. Its methods are described in client/core/observer.py."""

    def __init__(self, folder: Path, session: str) -> None:
        """Raises SettingInvalid if the file can't be created."""
        self._file = RecordFile(folder, session)
        self._positions = PositionRecorder(self._file)
        self._operations = OperationRecorder(self._file, self._positions)

    def close(self) -> None:
        self._file.close()

    def sending(self, session: str, commands: Sequence[PendingCommand]) -> None:
        for command in commands:
            if not command.request_ids:
                self._operations.sending(session, command)

    def answered(self, session: str, broker: str, command: PendingCommand, reply: Reply) -> None:
        if number_of(command):
            self._operations.answered(session, broker, command, reply)
        else:
            self._positions.answered(broker, command.body, reply)

    def delivering(
        self,
        subscription: SubscriptionEpoch,
        topic: str,
        messages: Iterable[Message],
        *,
        filtered: tuple[int, int] | None = None,
        token: int = 0,
    ) -> None:
        delivered = list(messages)
        ranges = ranges_of(delivered)
        passed = [] if filtered is None else ranges_between(*filtered, ranges)
        if ranges or passed:
            self._file.write(
                Got(
                    **epoch_fields(subscription),
                    topic=topic,
                    ranges=ranges,
                    digests=digests_of(delivered),
                    passed=passed,
                    token=token,
                )
            )

    def skipped(self, subscription: SubscriptionEpoch, start: int, stop: int) -> None:
        if stop > start:
            self._file.write(Left(**epoch_fields(subscription), ranges=[(start, stop - start)]))

    def rewound(self, subscription: SubscriptionEpoch, to: int) -> None:
        self._file.write(Back(**epoch_fields(subscription), to=to))

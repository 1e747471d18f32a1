"""Recording how far subscriptions have come, according to the broker's answers to gets and acks."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.commands.observer import SubscriptionEpoch
from oncemq.client.recording.file import RecordFile
from oncemq.client.recording.records import Acked, Displaced, Skipped, epoch_fields, ranges_between
from oncemq.protocol import errors
from oncemq.protocol.commands import BY_PATTERN, Ack, Command, Get, GetAny, Operation
from oncemq.protocol.replies import AckReply, BatchHead, GetAnyReply, GetReply, Refusal, Reply


class PositionRecorder:
    """The last known position of each subscription. It is written when it changes."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        #: Acked offset and number of dropped messages.
        self._positions: dict[SubscriptionEpoch, tuple[int, int]] = {}

    def start(self, subscription: SubscriptionEpoch, acked: int) -> None:
        """The subscription was opened at this position, which is on record with the opening."""
        self._positions[subscription] = (acked, 0)

    def note_acked(self, subscription: SubscriptionEpoch, acked: int, dropped: int = 0) -> None:
        known_acked, known_dropped = self._positions.get(subscription, (-1, 0))
        if acked > known_acked or dropped > known_dropped:
            acked, dropped = max(acked, known_acked), max(dropped, known_dropped)
            self._positions[subscription] = (acked, dropped)
            self._file.write(Acked(**epoch_fields(subscription), acked=acked, dropped=dropped))

    def note_refusal(self, subscription: SubscriptionEpoch, refusal: Refusal) -> None:
        if refusal.code == errors.Sought.code:
            self._file.write(Displaced(**epoch_fields(subscription)))

    def _note_skipped(
        self, subscription: SubscriptionEpoch, start: int, stop: int, batches: Sequence[BatchHead]
    ) -> None:
        if stop - start > sum(head.count for head in batches):
            ranges = ranges_between(start, stop, [(head.first_offset, head.count) for head in batches])
            self._file.write(Skipped(**epoch_fields(subscription), ranges=ranges))

    def answered(self, broker: str, command: Command | Operation, reply: Reply) -> None:
        """The broker has answered a command that has no number."""
        if isinstance(command, Get):
            self._get_answered(broker, command, reply)
        elif isinstance(command, GetAny):
            self._get_any_answered(broker, command, reply)
        elif isinstance(command, Ack):
            subscription = SubscriptionEpoch(broker, command.topic_id, command.subscriber, command.epoch)
            if isinstance(reply, Refusal):
                self.note_refusal(subscription, reply)
            elif isinstance(reply, AckReply):
                self.note_acked(subscription, reply.acked)

    def _get_answered(self, broker: str, command: Get, reply: Reply) -> None:
        subscription = SubscriptionEpoch(broker, command.topic_id, command.subscriber, command.epoch)
        if isinstance(reply, Refusal):
            self.note_refusal(subscription, reply)
        elif isinstance(reply, GetReply):
            self.note_acked(subscription, reply.acked, reply.dropped)
            self._note_skipped(subscription, command.position, reply.next_position, reply.batches)

    def _get_any_answered(self, broker: str, command: GetAny, reply: Reply) -> None:
        key = command.subscriber + BY_PATTERN + command.pattern
        if isinstance(reply, Refusal):
            self.note_refusal(SubscriptionEpoch(broker, 0, key, command.epoch), reply)
        elif isinstance(reply, GetAnyReply):
            positions = dict(command.positions)
            for topic_id, upto in command.acks:
                self.note_acked(SubscriptionEpoch(broker, topic_id, key, command.epoch), upto)
            for part in reply.parts:
                subscription = SubscriptionEpoch(broker, part.topic_id, key, command.epoch)
                self.note_acked(subscription, part.acked, part.dropped)
                start = positions.get(part.topic_id, part.acked)
                self._note_skipped(subscription, start, part.next_position, part.batches)

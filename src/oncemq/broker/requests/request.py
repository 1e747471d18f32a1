"""A request while the broker works on it: its commands, the replies so far, and the response at the end."""

from __future__ import annotations

import msgspec

from oncemq.broker.batch_reader import BatchReader
from oncemq.engine.decide.decision import Decision
from oncemq.protocol.commands import As, Command, Get, GetAny, Read
from oncemq.protocol.frames import Frame, encode_replies, encode_reply, encode_response
from oncemq.protocol.replies import GetReply, NotNow, Reply


class Request(msgspec.Struct, eq=False):
    peer: bytes
    request_id: int
    commands: tuple[Command, ...]
    payloads: list[tuple[Frame, ...]]
    #: The caller of the connection; "" = there are no users.
    caller: str = ""
    #: For whom a gateway sends each command; None = for itself. Empty if it is so for all.
    behalves: tuple[As | None, ...] = ()
    #: Encoded, except for those whose batches are read after the sync, and for the only one of a request.
    replies: list[Reply | msgspec.Raw] = []
    #: Index of each reply whose batches are read after the sync, with the decision that found them.
    _fetches: list[tuple[int, Decision]] = []
    #: Bytes of all batches that the replies return.
    fetch_bytes: int = 0
    #: Bytes of all other replies, if there are more to come.
    encoded_bytes: int = 0

    def behalf_of(self, index: int) -> As | None:
        """Return for whom a gateway sends a command; None = for itself."""
        return self.behalves[index] if self.behalves else None

    @property
    def has_messages(self) -> bool:
        """Whether batches are read for it after the sync of this round."""
        return bool(self._fetches)

    def answer(self, decision: Decision) -> None:
        """Add the reply to the next command."""
        if decision.slices:
            self._fetches.append((len(self.replies), decision))
            self.fetch_bytes += sum(entry.size for entry in decision.slices)
            self.replies.append(decision.reply)
        elif len(self.commands) == 1:
            self.replies.append(decision.reply)
        else:
            encoded = encode_reply(decision.reply)
            self.encoded_bytes += len(encoded)
            self.replies.append(msgspec.Raw(encoded))

    def refuse_rest(self, reply: NotNow) -> None:
        """Give the same reply to all commands that have none."""
        self.replies += encode_replies(reply, len(self.commands) - len(self.replies))

    def fix_position(self, decision: Decision) -> None:
        """Replace the command of a request that starts to wait by one that starts at the position it has now.

        Otherwise "new" would mean a later position with each attempt. The acks of a get were recorded by the first
        attempt and are removed, so that further attempts record nothing."""
        command, reply = self.commands[0], decision.reply
        fixed: Command
        if isinstance(command, Read):
            assert isinstance(reply, GetReply)
            fixed = msgspec.structs.replace(command, topic_id=reply.topic_id, position=reply.next_position)
        elif isinstance(command, Get):
            assert isinstance(reply, GetReply)
            fixed = msgspec.structs.replace(command, position=reply.next_position, ack=-1)
        elif isinstance(command, GetAny):
            fixed = msgspec.structs.replace(command, acks=())
        else:
            return
        self.commands = (fixed,)

    def encode_response(self, reader: BatchReader) -> list[Frame]:
        """Return the response. It reads batches from the journal, so it must be called after the sync."""
        payloads: list[Frame] = []
        for index, decision in self._fetches:
            self.replies[index] = reader.read(self.commands[index], decision, payloads)
        return encode_response(self.request_id, self.replies, payloads)

"""The account of one connection: what the kernel has transferred, compared with what the listener has read and sent."""

from __future__ import annotations

from oncemq.net import kernel

#: What a peer may send that is no message: the handshake at first, later heartbeats between two measurements.
_OVERHEAD_BYTES = 4096


def wire_bytes(size: int) -> int:
    """Return the size of a frame as it is transferred."""
    return size + (9 if size > 255 else 2)


def _without_overhead(incoming: int) -> int:
    return incoming if incoming > _OVERHEAD_BYTES else 0


class Connection:
    """`delivered`, `sent`, `caller` and `number` are written by the thread of the socket only, the rest by the guard,
    except `acked`, which both refresh."""

    __slots__ = (
        "_allowed",
        "_allowed_at",
        "_delivered_before",
        "_surplus",
        "acked",
        "caller",
        "cookie",
        "delivered",
        "descriptor",
        "is_cut",
        "is_unix",
        "number",
        "peer",
        "progress_s",
        "received",
        "sent",
        "stalled_at_bytes",
        "stalled_since_s",
        "unprocessed",
    )

    def __init__(self, descriptor: int, now_s: float) -> None:
        self.descriptor = descriptor
        self.cookie = kernel.cookie_of(descriptor)
        self.is_unix = kernel.is_unix(descriptor)
        #: The routing id of the peer, once a message has arrived.
        self.peer = b""
        #: Whose the last message was, and the number that it was admitted under (zap.py); 0 = not known yet.
        self.caller = ""
        self.number = 0
        #: Bytes of messages that were read from the socket, and that were passed to it.
        self.delivered = 0
        self.sent = 0
        self.received = 0
        self.acked = 0
        #: Received bytes that were not delivered: an unfinished message, and messages that wait to be read.
        self.unprocessed = 0
        #: When something was last read, or nothing was left to be read. Unix sockets: when something was last read.
        self.stalled_since_s = now_s
        #: The memory of the process at that time; 0 if it was not measured since.
        self.stalled_at_bytes = 0
        #: When the peer last acknowledged something, or nothing was left to be acknowledged.
        self.progress_s = now_s
        self.is_cut = False
        self._allowed = _OVERHEAD_BYTES
        self._allowed_at = 0
        self._delivered_before = 0
        self._surplus = 0

    @property
    def is_open(self) -> bool:
        """Whether the descriptor still belongs to this connection."""
        return kernel.cookie_of(self.descriptor) == self.cookie

    @property
    def is_closed(self) -> bool:
        """Whether it is known to be closed. It may have been closed before this object was made."""
        return kernel.IS_MEASURED and (not self.cookie or not self.is_open)

    @property
    def unread(self) -> int:
        """Bytes that were sent and that the peer has not acknowledged, as far as measured."""
        return max(0, self.sent - self.acked)

    def measure(self, now_s: float, used_bytes: int = 0) -> None:
        """Compare with the kernel. `used_bytes` is the memory of the process."""
        if self.is_unix:
            self._measure_unix(now_s)
            return
        traffic = kernel.tcp_traffic(self.descriptor)
        if traffic is None:
            self.progress_s = now_s
            return
        acked, self.received, is_waiting = traffic
        before = self.acked
        self._note_acked(acked)
        if self.acked != before or not is_waiting:
            self.progress_s = now_s
        self._settle(self.received - self.delivered)
        self._note_deliveries(self.unprocessed > 0, now_s)
        if self.stalled_since_s == now_s or not self.stalled_at_bytes:
            self.stalled_at_bytes = used_bytes

    def refresh_acked(self) -> None:
        """Ask the kernel what the peer has acknowledged."""
        if self.is_unix:
            queues = kernel.unix_queues(self.descriptor)
            if queues is not None and not queues[1]:
                self.acked = self.sent
        else:
            traffic = kernel.tcp_traffic(self.descriptor)
            if traffic is not None:
                self._note_acked(traffic[0])

    def _note_acked(self, acked: int) -> None:
        """The handshake and the replies to heartbeats are acknowledged, but do not count as sent."""
        self._surplus = max(self._surplus, acked - self.sent)
        self.acked = acked - self._surplus

    def _measure_unix(self, now_s: float) -> None:
        """The kernel counts no bytes of Unix sockets. What was sent counts until the peer has read everything. What was
        received shows only while it waits to be read, and then counts until a message was delivered. As it may not have
        shown at all, the connection counts as stalled between two messages."""
        queues = kernel.unix_queues(self.descriptor)
        if queues is None:
            self.progress_s = now_s
            return
        incoming, outgoing = _without_overhead(queues[0]), queues[1]
        if not outgoing:
            self.acked = self.sent
        # `received` has no other use here: it holds the size of the queue at the last measurement.
        if outgoing != self.received or not outgoing:
            self.progress_s = now_s
        self.received = outgoing
        has_delivered = self.delivered != self._delivered_before
        self.unprocessed = incoming if has_delivered else max(self.unprocessed, incoming)
        self._note_deliveries(True, now_s)

    def look_at_queue(self) -> None:
        """Note what waits to be read from a Unix socket at this moment."""
        queues = kernel.unix_queues(self.descriptor)
        if queues is not None:
            self.unprocessed = max(self.unprocessed, _without_overhead(queues[0]))

    def _settle(self, missing: int) -> None:
        """Set `unprocessed`. Bytes that are no part of a message are forgiven when a message was delivered since, and
        only a few at a time: a peer can't hide an unfinished message behind them."""
        self._allowed = min(self._allowed, missing + _OVERHEAD_BYTES)
        if self.delivered != self._allowed_at and missing - self._allowed <= 0:
            self._allowed_at = self.delivered
            self._allowed = missing + _OVERHEAD_BYTES
        self.unprocessed = max(0, missing - self._allowed)

    def _note_deliveries(self, is_left: bool, now_s: float) -> None:
        if self.delivered != self._delivered_before or not is_left:
            self._delivered_before = self.delivered
            self.stalled_since_s = now_s

"""The stream transport: requests and replies over TCP and Unix sockets, as bytes. No socket is opened here.

Each side sends an opening, once. The client is the first one, and may send requests right behind it:

    magic        6 bytes    "ONCEMQ"
    version      u8         1
    reserved     u8         0
    size         u32        bytes of the properties
    properties   msgpack    a map with strings as keys; unknown keys are ignored

Messages follow. A message is a request or a reply (frames.py):

    size         u32        bytes after this field
    count        u32        number of frames, at least 1
    sizes        u32 each   of the frames
    frames

All numbers are little-endian. Bytes that break these rules end the connection.
"""

from __future__ import annotations

import struct
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from oncemq.protocol.frames import Frame

MAGIC = b"ONCEMQ"
STREAM_VERSION = 1
PROPERTIES_BYTES_MAX = 64 * 1024
#: One receive call asks for this many bytes, unless the rest of a large message has its own buffer.
RECEIVE_BYTES = 64 * 1024
#: A message of at least this size is received into a buffer of its own.
_LARGE_BYTES = 64 * 1024
#: The buffer of a large message has at first this size, or this many times the bytes that have arrived, or the size of
#: the largest message before. It grows when it is full: a size that is only claimed takes no memory.
_BUFFER_BYTES_MIN = 64 * 1024
_BUFFER_GROWTH = 4
#: A reader that copies the frames keeps a buffer of at most this size for the next message: new memory takes time.
_KEPT_BYTES_MAX = 4 * 1024 * 1024
#: Below this size, a frame of a large message is copied: it must not keep the buffer of the whole message.
_COPY_BELOW_BYTES = 4 * 1024
#: Below this size, the frames of a message are joined, which takes less time than a call with several buffers.
_JOIN_BELOW_BYTES = 32 * 1024

#: What the bytes of a peer begin with that uses TLS: a record of an alert, or of the handshake.
_TLS_RECORDS = (0x15, 0x16)

_OPENING = struct.Struct("<6sBBI")
_SIZE = struct.Struct("<I")
_ONE_FRAME = struct.Struct("<III")
_TWO_FRAMES = struct.Struct("<IIII")
_NUMBER_BYTES = 4
_MESSAGE_BYTES_MIN = 2 * _NUMBER_BYTES

_encode_properties = msgspec.msgpack.Encoder().encode
_decode_properties = msgspec.msgpack.Decoder(dict[str, Any]).decode


class StreamBroken(Exception):
    """The bytes of a peer are not what the protocol says."""

    #: What the peer is told, if it has not sent its opening.
    code = "MALFORMED"


def encode_opening(properties: Mapping[str, Any]) -> bytes:
    encoded = _encode_properties(properties)
    return _OPENING.pack(MAGIC, STREAM_VERSION, 0, len(encoded)) + encoded


def encode_message(frames: Sequence[Frame]) -> list[Frame]:
    """Return the buffers to send, one after the other. A small message is one buffer."""
    count = len(frames)
    if count == 1:
        size = len(frames[0])
        head = _ONE_FRAME.pack(size + 8, 1, size)
    elif count == 2:
        first, second = len(frames[0]), len(frames[1])
        size = first + second
        head = _TWO_FRAMES.pack(size + 12, 2, first, second)
    else:
        sizes = list(map(len, frames))
        size = sum(sizes)
        head = struct.pack(f"<{count + 2}I", size + _NUMBER_BYTES * (count + 1), count, *sizes)
    if size < _JOIN_BELOW_BYTES:
        return [b"".join((head, *frames))]
    return [head, *frames]


def remove_sent(outgoing: deque[memoryview], count: int) -> None:
    """The system has taken this many bytes of the buffers that wait to be sent: remove them."""
    while count:
        first = outgoing[0]
        if count < len(first):
            outgoing[0] = first[count:]
            return
        count -= len(first)
        outgoing.popleft()


class StreamReader:
    """Splits the bytes of one side into its opening and messages.

    Bytes are passed to `feed`. While `target` is not None, the rest of a large message is received into it instead, and
    `filled` says how many bytes were."""

    __slots__ = (
        "_as_bytes",
        "_bytes_max",
        "_filled",
        "_frames_max",
        "_kept",
        "_large",
        "_large_bytes",
        "_largest_bytes",
        "_messages",
        "_messages_max",
        "_rest",
        "has_more",
        "properties",
    )

    def __init__(
        self, message_bytes_max: int, frames_max: int, *, as_bytes: bool, messages_max: int = sys.maxsize
    ) -> None:
        """With `as_bytes`, all frames are bytes. Otherwise large ones are views of the buffer that they arrived in.

        One call returns at most `messages_max` messages."""
        self._bytes_max = message_bytes_max
        self._frames_max = frames_max
        self._messages_max = messages_max
        self._as_bytes = as_bytes
        #: Of the opening; None until it is complete.
        self.properties: dict[str, Any] | None = None
        #: What has arrived of a small message or of the opening.
        self._rest = b""
        #: The buffer of a large message without its size, the size, and how much of it has arrived.
        self._large: memoryview | None = None
        self._large_bytes = 0
        self._filled = 0
        self._largest_bytes = 0
        self._kept = memoryview(b"")
        self._messages: deque[list[Frame]] = deque()
        #: What has arrived holds more messages: `feed` must be called again, if need be with nothing.
        self.has_more = False

    @property
    def incomplete_bytes(self) -> int:
        """What has arrived of a message that is not complete."""
        return self._filled if self._large is not None else len(self._rest)

    @property
    def reserved_bytes(self) -> int:
        """The memory that a message that is not complete takes."""
        return len(self._large) if self._large is not None else len(self._rest)

    @property
    def target(self) -> memoryview | None:
        return None if self._large is None else self._large[self._filled :]

    def next(self) -> list[Frame] | None:
        """Return the next message that is complete."""
        return self._messages.popleft() if self._messages else None

    def filled(self, count: int) -> None:
        """This many bytes were received into `target`. Raises StreamBroken."""
        assert self._large is not None
        self._filled += count
        if self._filled < len(self._large):
            return
        body = self._large
        if self._filled < self._large_bytes:
            self._large = self._buffer(_BUFFER_GROWTH * self._filled)
            self._large[: self._filled] = body
            return
        self._largest_bytes = max(self._largest_bytes, self._large_bytes)
        self._large, self._filled = None, 0
        self._messages.append(self._split_large(body))

    def _buffer(self, size: int) -> memoryview:
        """Return a buffer of this size for the large message, or of the size of the message."""
        size = min(size, self._large_bytes)
        if len(self._kept) >= size:
            return self._kept[: self._large_bytes]
        made = memoryview(bytearray(size))
        if self._as_bytes and size <= _KEPT_BYTES_MAX:
            self._kept = made
        return made

    def feed(self, data: bytes) -> None:
        """These bytes have arrived. Raises StreamBroken."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        begin = 0
        if self.properties is None:
            begin = self._read_opening(data)
            if not begin:
                return
        end = len(data)
        self.has_more = False
        while end - begin >= _NUMBER_BYTES:
            if len(self._messages) >= self._messages_max:
                self.has_more = True
                break
            [size] = _SIZE.unpack_from(data, begin)
            following = begin + _NUMBER_BYTES + size
            if following > end:
                if size >= _LARGE_BYTES or size > self._bytes_max:
                    self._start_large(size, data, begin + _NUMBER_BYTES)
                    return
                break
            self._messages.append(self._split(data, begin, size))
            begin = following
        if begin < end:
            self._rest = data[begin:]

    def _read_opening(self, data: bytes) -> int:
        """Return where the opening ends; 0 if it is not complete."""
        if not MAGIC.startswith(data[: len(MAGIC)]):
            if data[0] in _TLS_RECORDS:
                raise StreamBroken("the peer uses TLS, and this side does not")
            raise StreamBroken("the peer does not use the stream protocol of OnceMQ")
        if len(data) < _OPENING.size:
            self._rest = data
            return 0
        _, version, _, size = _OPENING.unpack_from(data)
        if version != STREAM_VERSION:
            raise StreamBroken(f"the peer uses version {version} of the stream protocol, not {STREAM_VERSION}")
        if size > PROPERTIES_BYTES_MAX:
            raise StreamBroken(f"the opening has {size} bytes of properties; the limit is {PROPERTIES_BYTES_MAX}")
        end: int = _OPENING.size + size
        if len(data) < end:
            self._rest = data
            return 0
        try:
            self.properties = _decode_properties(data[_OPENING.size : end])
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise StreamBroken(f"the properties of the opening could not be decoded: {error}") from None
        return end

    def _start_large(self, size: int, data: bytes, begin: int) -> None:
        if size > self._bytes_max:
            raise StreamBroken(f"a message of {size} bytes; the limit is {self._bytes_max}")
        self._large_bytes = size
        self._filled = len(data) - begin
        self._large = self._buffer(max(_BUFFER_BYTES_MIN, _BUFFER_GROWTH * self._filled, self._largest_bytes))
        self._large[: self._filled] = data[begin:]

    def _split(self, data: bytes, begin: int, size: int) -> list[Frame]:
        """Return the frames of a message that begins here."""
        if size < _MESSAGE_BYTES_MIN:
            raise StreamBroken(f"a message of {size} bytes")
        if size > self._bytes_max:
            raise StreamBroken(f"a message of {size} bytes; the limit is {self._bytes_max}")
        _, count, first = _ONE_FRAME.unpack_from(data, begin)
        position = begin + 12
        if count == 1 and first == size - 8:
            return [data[position : position + first]]
        frames: list[Frame] = []
        position = begin + 2 * _NUMBER_BYTES
        for length in self._sizes_of(data, position, count, size):
            start = position + _NUMBER_BYTES * count
            frames.append(data[start : start + length])
            position += length
        return frames

    def _split_large(self, body: memoryview) -> list[Frame]:
        [count] = _SIZE.unpack_from(body)
        frames: list[Frame] = []
        begin = _NUMBER_BYTES * (count + 1)
        for length in self._sizes_of(body, _NUMBER_BYTES, count, len(body)):
            frame = body[begin : begin + length]
            frames.append(bytes(frame) if self._as_bytes or length < _COPY_BELOW_BYTES else frame)
            begin += length
        return frames

    def _sizes_of(self, data: Frame, begin: int, count: int, size: int) -> tuple[int, ...]:
        """Return the sizes of the frames of a message that has `size` bytes after its own size."""
        if not 1 <= count <= self._frames_max or _NUMBER_BYTES * (count + 1) > size:
            raise StreamBroken(f"a message of {size} bytes with {count} frames")
        sizes: tuple[int, ...] = struct.unpack_from(f"<{count}I", data, begin)
        if sum(sizes) + _NUMBER_BYTES * (count + 1) != size:
            raise StreamBroken("the sizes of the frames do not add up to the size of their message")
        return sizes

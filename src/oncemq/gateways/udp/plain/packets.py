"""Plain packets: a code, a space, a topic, a space, the content. It does no I/O: bytes to requests, replies to bytes.

    packet    code [ SP topic [ SP content ] ]
    code      "0" | "1"  a message of a publisher; without content: create the topic
              "2"        subscribe           "3"  unsubscribe           "4"  list
    topic     bytes without a space | '"' bytes with \\" and \\\\ for a quote and a backslash '"'
    content   the rest of the packet, as it is

Zero bytes at the end, and one newline before them, are not part of a packet.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.names import refuse_topic_name

ACKNOWLEDGED = "Acknowledged!"
ALREADY = "Already subscribed to topic."
NO_TOPIC = "Topic does not exist."
UNSUBSCRIBED = "Unsubscribed!"
NOT_SUBSCRIBED = "You are not currently subscribed to this topic."
#: The beginning of replies to errors.
ERROR = b"Error "
#: In a list: there are more topics than fit.
MORE = "..."

_NEEDS_QUOTES = frozenset(' ",[]\\')
#: Bytes at the end of a packet that are removed together.
_ZEROS = bytes(1024)


class Publish(msgspec.Struct, frozen=True, gc=False):
    topic: str
    #: None: only create the topic.
    content: bytes | None


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    topic: str


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    topic: str


class List(msgspec.Struct, frozen=True, gc=False):
    #: List the topics after this name, in their order.
    after: str


Request = Publish | Subscribe | Unsubscribe | List


def parse(packet: bytes) -> Request:
    """Return the request of a packet. Raises Malformed, NameInvalid."""
    code, _, rest = _trim(packet).partition(b" ")
    if code not in (b"0", b"1", b"2", b"3", b"4"):
        raise errors.Malformed("a packet must start with a code from 0 to 4")
    if code == b"4":
        return _parse_list(rest)
    topic, content = _split_topic(rest)
    _check_topic(topic)
    if code == b"2":
        return Subscribe(topic)
    if code == b"3":
        return Unsubscribe(topic)
    return Publish(topic, content or None)


def _trim(packet: bytes) -> bytes:
    end = len(packet)
    # A packet may consist of zeros; `rstrip` compares one byte at a time.
    while packet.endswith(_ZEROS, 0, end):
        end -= len(_ZEROS)
    packet = packet[:end].rstrip(b"\0")
    return packet.removesuffix(b"\n").removesuffix(b"\r")


def _parse_list(rest: bytes) -> List:
    word, _, after = rest.partition(b" ")
    if word != b"list":
        raise errors.Malformed("to list topics, send: 4 list")
    # Spaces after it only make the request longer, which allows a longer reply.
    after = after.strip(b" ")
    return List(_split_topic(after)[0] if after else "")


def _split_topic(rest: bytes) -> tuple[str, bytes]:
    if rest.startswith(b'"'):
        return _split_quoted(rest)
    topic, _, content = rest.partition(b" ")
    return _text(topic), content


def _split_quoted(rest: bytes) -> tuple[str, bytes]:
    topic = bytearray()
    at = 1
    while at < len(rest) and rest[at : at + 1] != b'"':
        at += rest[at : at + 1] == b"\\"
        topic += rest[at : at + 1]
        at += 1
    if at >= len(rest) or rest[at + 1 : at + 2] not in (b"", b" "):
        raise errors.Malformed("a topic that starts with a quote must end with a quote, followed by a space")
    return _text(bytes(topic)), rest[at + 2 :]


def _text(topic: bytes) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError:
        raise errors.NameInvalid("a topic's name must be UTF-8") from None


def _check_topic(topic: str) -> None:
    refusal = refuse_topic_name(topic)
    if refusal is not None:
        raise errors.NameInvalid(refusal.text)


# Packets of the gateway.


def subscribed(topic: str) -> str:
    return f"Subscribed to {topic}!"


def format_message(topic: str, content: bytes) -> bytes:
    return b"%b: %b" % (topic.encode(), content)


def format_error(error: errors.OnceMQError) -> str:
    return f"{ERROR.decode()}{error.code}: {error.text}"


def quote(topic: str) -> str:
    """Return a topic as it is written in a packet."""
    if _NEEDS_QUOTES.isdisjoint(topic) and topic != MORE:
        return topic
    escaped = topic.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def format_list(topics: Iterable[str], is_all: bool, bytes_max: int) -> str:
    """Return as many names as fit, and a mark at the end if there are more."""
    bytes_left = bytes_max - len("[]") - len(f", {MORE}")
    names: list[str] = []
    for topic in topics:
        name = quote(topic)
        bytes_left -= len(name.encode()) + (2 if names else 0)
        if bytes_left < 0:
            is_all = False
            break
        names.append(name)
    return "[" + ", ".join(names if is_all else [*names, MORE]) + "]"


def cut(text: str, bytes_max: int) -> bytes:
    """Return the text, cut to a length without breaking a character."""
    data = text.encode()
    return data if len(data) <= bytes_max else data[:bytes_max].decode(errors="ignore").encode()

"""The two forms of a request, and the forms of a reply. It does no I/O: bytes to requests, replies to bytes.

    one line    operation SP topic SP subscriber [ SP start ]       sub; get and unsub without a start
                "put" SP topic SP content
    lines       id LF operation LF client LF topic [ LF start ]     sub; get and unsub without a start
                id LF "put" LF client LF topic LF content

    operation   "sub" | "unsub" | "get" | "put"
    start       "new" | "earliest"
    id          1 to 255 bytes without spaces and control characters, not one of the operations
    content     the rest of the request as it is, including spaces and newlines

In the one-line form, a topic or subscriber with spaces is written in single quotes, or in double quotes, where \\" and
\\\\ are a quote and a backslash. In the form of lines nothing is quoted. A request whose first word is an operation has
the one-line form.

    reply       "OK" SP words, or for a get "OK" SP content
                "ERROR" SP code SP text
"""

from __future__ import annotations

import re
from typing import Literal, NoReturn

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, START_NEW
from oncemq.protocol.names import refuse_name, refuse_topic_name

Verb = Literal["sub", "unsub", "get", "put"]

_VERBS: dict[str, Verb] = {"sub": "sub", "unsub": "unsub", "get": "get", "put": "put"}
_STARTS = {"": START_NEW, "new": START_NEW, "earliest": START_EARLIEST}
#: No valid name is longer, even with every character escaped.
_NAME_CHARACTERS_MAX = 600
_FIELD = re.compile(
    rf"""\ +(?: "((?:[^"\\]|\\.){{0,{_NAME_CHARACTERS_MAX}}})"
              | '([^']{{0,{_NAME_CHARACTERS_MAX}}})'
              | ([^\ "'][^\ ]{{0,{_NAME_CHARACTERS_MAX}}}) )(?=\ |\Z)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPED = re.compile(r'\\(["\\])')
_ID = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]+")
_ID_BYTES_MAX = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Request(msgspec.Struct, frozen=True, gc=False):
    verb: Verb
    topic: str
    #: "" in a put of the one-line form, which has no client.
    subscriber: str = ""
    content: bytes = b""
    start: int = START_NEW
    #: "" in the one-line form.
    id: str = ""


def parse(frame: bytes) -> Request:
    """Return the request in a frame. Raises Malformed, NameInvalid."""
    try:
        text = frame.decode()
    except UnicodeDecodeError as error:
        raise errors.Malformed(f"a request must be UTF-8; byte {error.start} is not") from None
    first, line_end, rest = text.partition("\n")
    verb = _VERBS.get(first.partition(" ")[0].removesuffix("\r"))
    if verb is not None:
        request = _parse_line(verb, text)
    elif line_end:
        request = _parse_lines(first.removesuffix("\r"), rest)
    else:
        _refuse("a request must start with sub, unsub, get or put, or with an id and the operation on the next line")
    _check_names(request)
    return request


def _parse_line(verb: Verb, text: str) -> Request:
    if verb != "put":
        text = text.rstrip(" \r\n")
    topic, end = _field(text, len(verb), "topic")
    if verb == "put":
        if end == len(text):
            _refuse("a put needs content after its topic: put TOPIC CONTENT")
        return Request(verb, topic, content=text[end + 1 :].encode())
    subscriber, end = _field(text, end, "subscriber")
    return Request(verb, topic, subscriber, start=_start_of(verb, text[end:].strip(" ")))


def _field(text: str, begin: int, what: str) -> tuple[str, int]:
    """Return the next field and its end."""
    found = _FIELD.match(text, begin)
    if found is None:
        _refuse(f"the {what} is missing, or its quotes don't match")
    in_double, in_single, bare = found.groups()
    if in_double is not None:
        return _ESCAPED.sub(r"\1", in_double), found.end()
    return in_single if in_single is not None else bare, found.end()


def _parse_lines(request_id: str, rest: str) -> Request:
    lines = rest.split("\n", 3)
    verb = _VERBS.get(lines[0].removesuffix("\r"))
    if verb is None:
        _refuse("the second line must be the operation: sub, unsub, get or put")
    if _ID.fullmatch(request_id) is None or len(request_id.encode()) > _ID_BYTES_MAX:
        _refuse(f"an id must have 1 to {_ID_BYTES_MAX} bytes, without spaces and control characters")
    if len(lines) < 3 + (verb == "put"):
        _refuse("lines are missing: a request has id, operation, client, topic, and for a put the content")
    subscriber, topic = lines[1].removesuffix("\r"), lines[2].removesuffix("\r")
    last = lines[3] if len(lines) == 4 else ""
    if verb == "put":
        return Request(verb, topic, subscriber, last.encode(), id=request_id)
    return Request(verb, topic, subscriber, start=_start_of(verb, last.rstrip("\r\n")), id=request_id)


def _start_of(verb: Verb, word: str) -> int:
    if word not in _STARTS or (word and verb != "sub"):
        _refuse("only a sub may have a word after the names: new or earliest; put names with spaces in quotes")
    return _STARTS[word]


def _check_names(request: Request) -> None:
    refusal = refuse_topic_name(request.topic)
    if request.verb != "put" or request.id:
        refusal = refusal or refuse_name(request.subscriber, "subscriber's name")
    if refusal is not None:
        raise errors.from_code(refusal.code, refusal.text)


def _refuse(text: str) -> NoReturn:
    raise errors.Malformed(text)


def format_done(words: str) -> bytes:
    """Return the reply to a successful operation."""
    return b"OK " + words.encode()


def format_message(content: bytes) -> bytes:
    """Return the reply to a get."""
    return b"OK " + content


def format_error(error: errors.OnceMQError) -> bytes:
    """Return the reply to a refused request. It is one line, even if a name in it has control characters."""
    return f"ERROR {error.code} {_CONTROL.sub(' ', error.text)}".encode()

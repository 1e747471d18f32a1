"""ZeroMQ's protocol for authentication (ZAP, RFC 27): before libzmq finishes the handshake of a connection, it asks
whose public key this is.

    request     [routing id] [""] ["1.0"] [request id] [domain] [address] [identity] ["CURVE"] [32 bytes: public key]
                the same with ["NULL"] at the end, for a connection that is not encrypted
    reply       [routing id] [""] ["1.0"] [request id] [status] [text] [User-Id] [metadata]

    status      200 accept; 400 the client is told, and does not try again; 500 the same, our bug
    metadata    {name length 1} {name} {value length 4} {value}

The metadata has the number of the connection. libzmq adds it and the User-Id to each message of the connection; what
the peer itself says under these names is ignored. Only the client's public key is known here, and neither the
descriptor nor the port: messages tell which connection it is.

A client that is to try again later must be disconnected without a word. The status 300 means this, but libzmq then
leaves the connection open. A reply that is not valid makes libzmq end it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import zmq
from zmq.utils import z85

from oncemq.net.curve import CurveServerKeys
from oncemq.protocol import errors
from oncemq.protocol.commands import CURVE, NO_CREDENTIAL

ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_CURVE, _PLAIN = b"CURVE", b"NULL"
_KEY_BYTES = 32
#: Properties of messages.
USER = "User-Id"
NUMBER = "OnceMQ-Number"
IDENTITY = "Identity"
_NUMBER_NAME = bytes([len(NUMBER)]) + NUMBER.encode()
#: The name of a peer holds its length in a byte (broker/network/zeromq.py).
CALLER_BYTES_MAX = 255

ACCEPTED, REFUSED, FAILED = b"200", b"400", b"500"
#: Not valid: see above.
AGAIN = b"300 again"
#: How long a handshake may take. The login is a part of it.
_HANDSHAKE_MS = 10_000
#: libzmq says this instead of an IP address; then come ids of user, group and process.
_LOCAL = b"localhost:"


class ZapRequest(NamedTuple):
    #: What the reply begins with.
    head: list[bytes]
    domain: bytes
    #: The address of the peer, without its port; `unix` for a Unix socket, as in the stream listener.
    address: str
    #: The public key of the client, as text; empty: the connection is not encrypted.
    key: str

    @property
    def kind(self) -> str:
        """The kind of the credential (protocol/commands)."""
        return CURVE if self.key else NO_CREDENTIAL


def open_zap(context: Any) -> Any:
    """Return the socket on which libzmq asks. It must exist before the listeners of its context, and be closed after
    them."""
    # A ROUTER, and not a REP, which would answer one after the other.
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(ADDRESS)
    return socket


def protect(socket: Any, keys: CurveServerKeys, domain: bytes) -> None:
    """Let a socket accept encrypted connections only, at the addresses that it binds from now on. With a domain, each
    of them needs an answer of the ZAP socket of its context."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    if domain:
        socket.setsockopt(zmq.ZAP_DOMAIN, domain)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def unprotect(socket: Any) -> None:
    """Let a socket accept plain connections, at the addresses that it binds from now on."""
    # If it has a domain, it keeps it: each of them needs an answer, too.
    socket.setsockopt(zmq.CURVE_SERVER, 0)


def parse(frames: list[bytes]) -> ZapRequest | None:
    """None: this is no request that can be answered."""
    if len(frames) < 8 or frames[1] or frames[2] != _VERSION:
        return None
    mechanism, *credentials = frames[7:]
    if mechanism == _CURVE and len(credentials) == 1 and len(credentials[0]) == _KEY_BYTES:
        key = z85.encode(credentials[0]).decode()
    elif mechanism == _PLAIN and not credentials:
        key = ""
    else:
        return None
    address = "unix" if frames[5].startswith(_LOCAL) else frames[5].decode("ascii", "replace")
    return ZapRequest(frames[:4], frames[4], address, key)


def accept(request: ZapRequest, caller: str, number: int) -> list[bytes]:
    """Return the reply that lets a connection in. `number` identifies it."""
    user = caller.encode()
    if len(user) > CALLER_BYTES_MAX:
        return refuse(request, FAILED, "the name of the user is too long")
    value = b"%d" % number
    return [*request.head, ACCEPTED, b"", user, _NUMBER_NAME + len(value).to_bytes(4, "big") + value]


def refuse(request: ZapRequest, status: bytes, text: str) -> list[bytes]:
    return [*request.head, status, text.encode(), b"", b""]


def status_of(error: BaseException) -> bytes:
    """Return the status for an exception of a login."""
    if isinstance(error, errors.TRANSIENT):
        return AGAIN
    return REFUSED if isinstance(error, errors.OnceMQError) else FAILED


def property_of(frame: zmq.Frame, name: str) -> str | None:
    """Return a property of a message. None: it has none, because libzmq itself made the message."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return None

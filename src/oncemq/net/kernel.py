"""What the kernel knows about a connection and about this process.

The descriptors belong to libzmq, which may close one at any time. So no call here takes ownership of a descriptor, and
a connection is recognized by its cookie, which the kernel never uses twice. The calls do not block and keep the
interpreter's lock: measuring thousands of connections would otherwise wait for the lock after each of them.

Everything is measured on Linux only. Elsewhere connections can be counted, but not measured.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
from typing import Any

_SO_DOMAIN, _SO_COOKIE = 39, 57
_TCP_INFO = 11
_FIONREAD, _TIOCOUTQ = 0x541B, 0x5411
#: Fields of the kernel's struct tcp_info with their offsets: packets that are not acknowledged; bytes that are
#: acknowledged, bytes that were received, bytes that were not sent.
_UNACKED, _UNACKED_AT = struct.Struct("=I"), 24
_COUNTS, _COUNTS_AT = struct.Struct("=QQ8xI"), 120
_INFO_BYTES = _COUNTS_AT + _COUNTS.size
#: The struct linger: on, 0 seconds.
_DROP_AT_CLOSE = struct.pack("=ii", 1, 0)
#: An option of mallopt, and its value.
_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES = -3, 256 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

IS_MEASURED = sys.platform == "linux"

_libc: Any = ctypes.PyDLL(None) if IS_MEASURED else None
#: The same library. Its calls may take long, so they release the interpreter's lock.
_allocator: Any = ctypes.CDLL(None) if IS_MEASURED else None


class _AllocatorState(ctypes.Structure):
    """The C library's struct mallinfo2. `uordblks` are the bytes in use in the heaps, `hblkhd` those in blocks of their
    own."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


#: Whether the C library can tell how much memory is in use.
_KNOWS_USED = hasattr(_allocator, "mallinfo2")
if _KNOWS_USED:
    _allocator.mallinfo2.restype = _AllocatorState


class _Memory(threading.local):
    """Where the kernel writes its results. Each thread has one of its own."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(256)
        self.size = ctypes.c_uint32()
        self.number = ctypes.c_int()


_memory = _Memory()


def _option(descriptor: int, level: int, option: int) -> Any:
    """Return a buffer that starts with the value of a socket's option. None: there is no such socket or option."""
    memory = _memory
    memory.size.value = len(memory.buffer)
    if _libc.getsockopt(descriptor, level, option, memory.buffer, ctypes.byref(memory.size)):
        return None
    return memory.buffer


def cookie_of(descriptor: int) -> int:
    """Return the number that identifies a socket; 0 if the descriptor is not a socket."""
    found = _option(descriptor, socket.SOL_SOCKET, _SO_COOKIE) if IS_MEASURED else None
    return 0 if found is None else struct.unpack_from("=Q", found)[0]


def is_unix(descriptor: int) -> bool:
    found = _option(descriptor, socket.SOL_SOCKET, _SO_DOMAIN) if IS_MEASURED else None
    return found is not None and struct.unpack_from("=i", found)[0] == socket.AF_UNIX


def tcp_traffic(descriptor: int) -> tuple[int, int, bool] | None:
    """Return the bytes that the peer has acknowledged, the bytes that were received from it, and whether sent bytes are
    not acknowledged yet. None: the descriptor is no TCP connection."""
    info = _option(descriptor, socket.IPPROTO_TCP, _TCP_INFO) if IS_MEASURED else None
    if info is None or _memory.size.value < _INFO_BYTES:
        return None
    acked, received, not_sent = _COUNTS.unpack_from(info, _COUNTS_AT)
    (unacked,) = _UNACKED.unpack_from(info, _UNACKED_AT)
    return acked, received, bool(unacked or not_sent)


def unix_queues(descriptor: int) -> tuple[int, int] | None:
    """Return the bytes that the peer has sent and libzmq has not read, and the size of what was sent to the peer and is
    not read by it. None: the descriptor is closed."""
    incoming, outgoing = _queue(descriptor, _FIONREAD), _queue(descriptor, _TIOCOUTQ)
    return None if incoming is None or outgoing is None else (incoming, outgoing)


def _queue(descriptor: int, request: int) -> int | None:
    number = _memory.number
    if not IS_MEASURED or _libc.ioctl(descriptor, ctypes.c_ulong(request), ctypes.byref(number)):
        return None
    return int(number.value)


def peek(descriptor: int, size: int) -> bytes:
    """Return the next bytes that libzmq will read from a connection; empty if none have arrived."""
    buffer = ctypes.create_string_buffer(size)
    found = _libc.recv(descriptor, buffer, ctypes.c_size_t(size), socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return buffer.raw[: max(0, found)]


def peer_of(descriptor: int) -> str:
    """Return the address of the other end, for people: " at 10.0.0.7:4711"; empty if it has none."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            address = copy.getpeername()
    except OSError:
        return ""
    return f" at {address[0]}:{address[1]}" if isinstance(address, tuple) else ""


def shut_down(descriptor: int) -> None:
    """End a connection in both directions. libzmq then closes it, and frees what waits for it and from it. The kernel
    drops what it has not sent: a peer that does not read would keep it for long."""
    if IS_MEASURED:
        _libc.setsockopt(descriptor, socket.SOL_SOCKET, socket.SO_LINGER, _DROP_AT_CLOSE, len(_DROP_AT_CLOSE))
        _libc.shutdown(descriptor, socket.SHUT_RDWR)
        return
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def resident_bytes() -> int:
    """Return the memory of this process; 0 if it can't be measured."""
    if not IS_MEASURED:
        return 0
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def used_bytes() -> int:
    """Return the memory that this process has allocated and not freed. It counts what C code allocates, libzmq's among
    it, and not the small objects of Python. Where the C library can't tell, return the memory of the process, which
    falls late: an allocator keeps what was freed."""
    if not _KNOWS_USED:
        return resident_bytes()
    found = _allocator.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def kept_bytes() -> int:
    """Return the memory that the C library has freed and not returned, and what is not allocated with it: code, and the
    small objects of Python. Where the C library can't tell, return the memory of the process."""
    return resident_bytes() - (used_bytes() if _KNOWS_USED else 0)


def return_free_memory() -> None:
    """Return memory to the system that the allocator keeps for later, where the C library can do that."""
    if hasattr(_allocator, "malloc_trim"):
        _allocator.malloc_trim(0)


def return_large_blocks() -> None:
    """From now on, return large blocks to the system as soon as they are freed, where the C library can do that."""
    if hasattr(_allocator, "mallopt"):
        _allocator.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)

"""How a process gets its memory from the operating system.

The C library maps new pages for each large block, and unmaps them when it is freed. A process that receives and sends
batches of a megabyte then spends more time on page faults than on copying. Here it keeps a limited amount of freed
memory for the next batch.
"""

from __future__ import annotations

import ctypes
import sys

# Numbers of options in malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Smaller blocks come from the heap. The C library does not accept more.
_HEAP_BLOCK_BYTES_MAX = 32 * 1024 * 1024
#: Freed memory at the end of the heap beyond this is returned to the system.
_KEPT_BYTES_MAX = 64 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Let this process keep some freed memory for its next allocations. Returns whether the C library supports it."""
    if sys.platform != "linux":
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(_M_MMAP_THRESHOLD, _HEAP_BLOCK_BYTES_MAX) and set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX))

"""An object as a seekable file, for Arrow. It reads ranges, with a buffer so that small reads are not requests."""

from __future__ import annotations

import io
from typing import Any

_BUFFER_BYTES = 1024 * 1024


def open_object(store: Any, path: str) -> io.BufferedReader:
    """Raises the errors of the store."""
    import obstore

    return io.BufferedReader(_RawObject(store, path, obstore.head(store, path)["size"]), _BUFFER_BYTES)


class _RawObject(io.RawIOBase):
    def __init__(self, store: Any, path: str, size: int) -> None:
        super().__init__()
        self._store, self._path, self._size = store, path, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        import obstore
        from obstore.exceptions import BaseError

        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        try:
            data = obstore.get_range(self._store, self._path, start=self._at, length=count)
        except BaseError as error:
            # Readers of files expect this kind.
            raise OSError(str(error).split("\n", 1)[0]) from error
        buffer[:count] = memoryview(data)
        self._at += count
        return count

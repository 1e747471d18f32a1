"""A folder in an object store. Paths are relative to it.

A put is atomic and durable. `create` puts an object only if there is none of its name (`If-None-Match: *`), and
`update` replaces it only if it is still the one that was read (`If-Match`). S3, Google Cloud Storage and Azure have
both.

If the reply to a put is lost, the request is repeated. A `create` then finds the object of its own first request, and
returns False. So the caller must read what is there, and must not take it for another driver's.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from oncemq.protocol import errors
from oncemq.spark.targets.files.file_writer import DataFile
from oncemq.spark.targets.files.folder import StoredFile
from oncemq.spark.targets.objects.location import normalized, resolve_settings
from oncemq.spark.targets.objects.object_reader import open_object

_UPDATE_ATTEMPTS = 20
#: An object that shows whether the store has conditional puts. Readers ignore its name.
_PROBE = "_oncemq-probe"
#: One store per process: connections must not be shared with a forked process.
_stores: dict[tuple[int, str, tuple[tuple[str, str], ...]], Any] = {}


class ObjectFolder:
    """It is pickled for tasks, so it contains only the URL and the names of the settings."""

    def __init__(self, url: str, storage: Mapping[str, str]) -> None:
        self.url = normalized(url)
        self._storage = dict(storage)

    def prepare(self) -> None:
        """Check that the folder can be reached, and that the store has conditional puts. Raises OnceMQError, or
        SettingInvalid."""
        next(self.list("_oncemq"), None)
        self.create(_PROBE, b"A second put of this object must be refused.")
        if self.create(_PROBE, b"The store ignores `If-None-Match`."):
            raise errors.SettingInvalid(
                f"the object store of {self.url} ignores the condition of a put (`If-None-Match: *`), so two drivers "
                "could write a batch twice: update the store, or use another one"
            )

    # Files of tasks.

    def place(self, prefix: str, write: Callable[[str], list[DataFile]]) -> list[DataFile]:
        """Let `write` write files into a local folder, and upload them below the prefix."""
        with tempfile.TemporaryDirectory(prefix="oncemq-upload-") as local:
            files = write(local)
            for file in files:
                self.upload(os.path.join(prefix, file.path), os.path.join(local, file.path))
        return files

    def upload(self, path: str, local: str) -> None:
        """Large files are uploaded in parts; the object appears when it is complete."""
        from pathlib import Path

        with self._explain():
            self._obstore.put(self._store, path, Path(local))

    # Objects.

    def read(self, path: str) -> bytes | None:
        try:
            with self._explain():
                return bytes(self._obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def create(self, path: str, data: bytes) -> bool:
        """Put an object if there is none of this name. Returns False if there is one, perhaps of this very call."""
        from obstore.exceptions import AlreadyExistsError

        try:
            with self._explain():
                self._obstore.put(self._store, path, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def update(self, path: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace an object by what `change` makes of its content (None = there is none), if nobody else does at the
        same time. Raises OnceMQError if others always do."""
        for _ in range(_UPDATE_ATTEMPTS):
            if self._try_update(path, change):
                return
        raise errors.OnceMQError(f"{self.url}/{path} is changed by others all the time; start again")

    def _try_update(self, path: str, change: Callable[[bytes | None], bytes]) -> bool:
        from obstore.exceptions import PreconditionError

        try:
            with self._explain():
                found = self._obstore.get(self._store, path)
                before = bytes(found.bytes())
                # S3 and Azure compare the tag, Google Cloud Storage the version.
                expected = {name: found.meta[name] for name in ("e_tag", "version") if found.meta.get(name)}
        except FileNotFoundError:
            return self.create(path, change(None))
        after = change(before)
        if after == before:
            return True
        try:
            with self._explain():
                self._obstore.put(self._store, path, after, mode=expected)
        except PreconditionError:
            return False
        return True

    def exists(self, path: str) -> bool:
        try:
            with self._explain():
                self._obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def copy(self, source: str, target: str) -> bool:
        """Copy an object inside the store. Returns False if it does not exist."""
        try:
            with self._explain():
                self._obstore.copy(self._store, source, target)
        except FileNotFoundError:
            return False
        return True

    def remove(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        try:
            self._delete(*paths)
        except FileNotFoundError:
            # S3 ignores objects that do not exist. Other stores report the first one, and may leave the rest.
            for path in paths:
                with suppress(FileNotFoundError):
                    self._delete(path)

    def _delete(self, *paths: str) -> None:
        with self._explain():
            self._obstore.delete(self._store, paths)

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        """All objects below the prefix, in no particular order."""
        with self._explain():
            for page in self._obstore.list(self._store, prefix or None):
                for found in page:
                    yield StoredFile(found["path"], found["last_modified"].timestamp())

    def open(self, path: str) -> Any:
        """A readable, seekable file."""
        with self._explain():
            return open_object(self._store, path)

    @property
    def _obstore(self) -> Any:
        import obstore

        return obstore

    @property
    def _store(self) -> Any:
        settings = resolve_settings(self._storage)
        key = (os.getpid(), self.url, tuple(sorted(settings.items())))
        if key not in _stores:
            _stores[key] = open_store(self.url, settings)
        return _stores[key]

    @contextmanager
    def _explain(self) -> Iterator[None]:
        """Convert errors of the store that callers do not handle to one sentence."""
        require_obstore()
        from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError

        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise
        except NotFoundError as error:
            raise FileNotFoundError(str(error)) from None
        except BaseError as error:
            text = " ".join(str(error).split("\n")[0].split())[:300]
            raise errors.OnceMQError(f"the object store of {self.url} failed: {text}") from None


def require_obstore() -> None:
    if importlib.util.find_spec("obstore") is None:
        raise errors.MissingExtra('obstore is not installed: pip install "oncemq[objects]"')


def open_store(url: str, settings: Mapping[str, str]) -> Any:
    from obstore.store import from_url

    config: Any = {name: value for name, value in settings.items() if name != "allow_http"}
    options: Any = {"allow_http": True} if "allow_http" in settings else None
    try:
        return from_url(url, config=config or None, client_options=options)
    except Exception as error:
        text = " ".join(str(error).split("\n")[0].split())[:300]
        raise errors.SettingInvalid(f"the object store of {url} can't be used: {text}") from None

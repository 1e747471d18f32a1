"""An S3 server on loopback, in memory, whose replies can get lost."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import obstore
import pyarrow.dataset
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from obstore.store import S3Store
from pyarrow import fs
from werkzeug.serving import make_server

BUCKET = "lake"
REGION = "us-east-1"
#: The variables that the targets of the tests name.
STORAGE = {"endpoint": "LAKE_ENDPOINT", "access_key_id": "LAKE_KEY", "secret_access_key": "LAKE_SECRET"}
STORAGE |= {"region": "LAKE_REGION"}

Matches = Callable[[dict[str, Any]], bool]


class S3Server:
    def __init__(self) -> None:
        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.port = self._server.server_port
        #: How the reply to the next matching request gets lost.
        self._fault: tuple[Matches, str] | None = None
        #: The maximum number of names on a page of a list; 0 = the server's own.
        self.page_size = 0
        self.pages = 0
        #: Executes all puts, like a store that does not know conditions.
        self.ignores_conditions = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> S3Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def lose_reply(self, method: str, part: str, how: str) -> None:
        """To the next request of that kind: `error` = the request is executed, and the reply is an error of the server;
        `cut` = it is executed, and the connection is cut; `refuse` = it is not executed, and the connection is cut."""
        self._fault = (lambda request: request["REQUEST_METHOD"] == method and part in request["PATH_INFO"], how)

    def _answer(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if "list-type=2" in request.get("QUERY_STRING", ""):
            self.pages += 1
            if self.page_size:
                request["QUERY_STRING"] += f"&max-keys={self.page_size}"
        if self.ignores_conditions:
            request.pop("HTTP_IF_NONE_MATCH", None)
        fault = self._fault
        if fault is None or not fault[0](request):
            answer: Iterable[bytes] = self._app(request, start)
            return answer
        self._fault = None
        if fault[1] != "refuse":
            b"".join(self._app(request, lambda *_: None))
        if fault[1] == "error":
            start("500 Internal Server Error", [("Content-Length", "0")])
            return []
        with contextlib.suppress(OSError):
            request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionError

    @property
    def has_lost(self) -> bool:
        """Whether the reply got lost that should."""
        return self._fault is None

    # What somebody sees who knows nothing of OnceMQ.

    def store(self, prefix: str = "") -> Any:
        options: Any = {"allow_http": True}
        return S3Store(
            BUCKET,
            prefix=prefix or None,
            endpoint=self.url,
            region=REGION,
            access_key_id="key",
            secret_access_key="secret",
            client_options=options,
        )

    def names(self, prefix: str) -> list[str]:
        return sorted(found["path"] for page in obstore.list(self.store(prefix)) for found in page)

    def table(self, prefix: str) -> dict[str, list[Any]]:
        files = fs.S3FileSystem(
            endpoint_override=self.url, access_key="key", secret_key="secret", region=REGION, scheme="http"
        )
        found = pyarrow.dataset.dataset(f"{BUCKET}/{prefix}", filesystem=files, format="parquet", partitioning="hive")
        columns: dict[str, list[Any]] = found.to_table().to_pydict()
        return columns


@contextlib.contextmanager
def running_s3() -> Iterator[S3Server]:
    import urllib.request

    with S3Server() as server:
        request = urllib.request.Request(f"{server.url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield server


def set_environment(server: S3Server, patch: pytest.MonkeyPatch) -> None:
    """Set the usual variables, and those that the targets of the tests name."""
    values = (server.url, "key", "secret", REGION)
    usual = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
    for names in (STORAGE.values(), usual):
        for variable, value in zip(names, values, strict=True):
            patch.setenv(variable, value)

"""Send one request per run, exactly once, despite crashes of the broker, the gateway, and this program.

    python examples/text/client.py sub alice "Cooking Recipes"
    python examples/text/client.py put bob "Cooking Recipes" "a soup"
    python examples/text/client.py get alice "Cooking Recipes"

Before a request is sent, it is written to a file together with its id. There is one file per client and operation. The
file is deleted when the request is answered. A run that finds such a file finishes that request first, with the same
id. So a get whose message was never printed is repeated, and gets the same message. Run one instance per client at a
time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
import urllib.parse
from pathlib import Path

from lazy_pirate import ServerOffline, ask

URL = os.environ.get("TEXT_URL", "tcp://127.0.0.1:5556")
EXITS = {"OK": 0, "NOTHING_NEW": 3}
OFFLINE, REFUSED = 1, 4


class Pending:
    """A request that may not have been answered, in a file."""

    def __init__(self, folder: Path, client: str, operation: str) -> None:
        # The name of a client must not be used as a path.
        name = urllib.parse.quote(client, safe="").replace(".", "%2E")
        self._path = folder / f"{name}.{operation}"

    def read(self) -> bytes | None:
        return self._path.read_bytes() if self._path.exists() else None

    def write(self, request: bytes) -> None:
        """Write the request atomically, and sync it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(self._path.suffix + ".new")
        with new.open("wb") as file:
            file.write(request)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        self._sync_folder()

    def clear(self) -> None:
        self._path.unlink()

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def with_id(operation: str, client: str, topic: str, content: str | None) -> bytes:
    """Return the request with a new id."""
    lines = [operation, client, topic] + ([content] if content is not None else [])
    request_id = hashlib.sha256("\n".join([str(time.time_ns()), *lines]).encode()).hexdigest()
    return "\n".join([request_id, *lines]).encode()


def is_same(one: bytes, other: bytes) -> bool:
    """Return whether two requests differ only in their ids."""
    return one.partition(b"\n")[2] == other.partition(b"\n")[2]


def finish(url: str, pending: Pending, request: bytes) -> str:
    """Send the pending request, print the reply, and then delete the file. Raises ServerOffline."""
    code, text = ask(url, request)
    out = sys.stdout if code == "OK" else sys.stderr
    out.write(text.decode(errors="replace") + "\n" if code == "OK" else f"{code}: {text.decode()}\n")
    out.flush()
    pending.clear()
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", choices=("sub", "unsub", "get", "put"))
    parser.add_argument("client")
    parser.add_argument("topic")
    parser.add_argument("message", nargs="?")
    parser.add_argument("--url", default=URL)
    parser.add_argument("--folder", type=Path, default=Path("pending-requests"))
    asked = parser.parse_args()
    if (asked.message is None) == (asked.operation == "put"):
        parser.error("put requires a message; the other operations accept none")
    pending = Pending(asked.folder, asked.client, asked.operation)
    request = with_id(asked.operation, asked.client, asked.topic, asked.message)
    try:
        former = pending.read()
        if former is not None and is_same(former, request):
            # The previous run had the same request, and did not finish it.
            request = former
        elif former is not None:
            finish(asked.url, pending, former)
        pending.write(request)
        return EXITS.get(finish(asked.url, pending, request), REFUSED)
    except ServerOffline as error:
        print(error, file=sys.stderr)
        return OFFLINE


if __name__ == "__main__":
    sys.exit(main())

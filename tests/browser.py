"""A real browser for tests of pages: Chromium without a window, controlled through a pipe.

    python -m tests.browser         installs one with apt, if there is none

It uses the DevTools protocol: JSON messages that end with a zero byte, on the descriptors 3 and 4 of the browser.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: The first is the smallest: 90 MB with all that it needs. Not every system has it.
_PACKAGES = ("chromium-headless-shell", "chromium")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_PAGE_LEFT = ("Inspected target navigated or closed", "Execution context was destroyed.")
_TIMEOUT_S = 60.0

Json = dict[str, Any]


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class PageLeft(Exception):
    """The browser left the page before it answered."""


class Browser:
    """One page. Its `requests` and the `complaints` of its console are recorded."""

    def __init__(self, folder: Path, *flags: str) -> None:
        """`folder`: a new folder for its profile. `flags`: further ones of the command line."""
        program = find()
        assert program is not None, "no browser: install chromium (make test does it where apt can)"
        (its_in, self._out), (self._in, its_out) = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            [program, *_FLAGS, *flags, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=lambda: _become_3_and_4(its_in, its_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_in)
        os.close(its_out)
        self._received = bytearray()
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._attach()

    def _attach(self) -> None:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Open a page. Returns when it and its resources are loaded."""
        self.evaluate("void (window.isLeft = true)")
        is_new = "loaderId" in self._call("Page.navigate", url=url)
        is_loaded = f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'"
        self.wait_for(f"!window.isLeft && {is_loaded}" if is_new else is_loaded)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until a JavaScript expression is true, on whichever page the browser is then."""
        until_s = time.monotonic() + _TIMEOUT_S
        while not self._is_true(expression):
            assert time.monotonic() < until_s, f"never true: {expression}"
            time.sleep(0.02)

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({expression})"))
        except PageLeft:
            return False

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._send("Browser.close", "")
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # The protocol.

    def _call(self, method: str, **parameters: Any) -> Json:
        number = self._send(method, self._session, **parameters)
        while True:
            message = self._receive()
            if message.get("id") == number:
                if "error" in message and message["error"]["message"] in _PAGE_LEFT:
                    raise PageLeft(method)
                assert "error" not in message, f"{method}: {message['error']}"
                result: Json = message["result"]
                return result
            self._take_event(message)

    def _send(self, method: str, session: str, **parameters: Any) -> int:
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._number

    def _receive(self) -> Json:
        while b"\0" not in self._received:
            assert select.select([self._in], [], [], _TIMEOUT_S)[0], "the browser says nothing"
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "the browser ended"
            self._received += chunk
        message, _, self._received = self._received.partition(b"\0")
        found: Json = json.loads(message)
        return found

    def _take_event(self, event: Json) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning"):
                self.complaints.append(str(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.complaints.append(about["entry"]["text"])


def _become_3_and_4(reading: int, writing: int) -> None:
    """Runs in the process of the browser. It makes copies first, because either descriptor may be 3 or 4 already."""
    copies = [fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in (reading, writing)]
    os.dup2(copies[0], 3)
    os.dup2(copies[1], 4)


def install() -> bool:
    """Install a browser. Returns whether there is one afterwards."""
    if find() is not None:
        return True
    if shutil.which("apt-get") is None:
        return False
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    apt = [*become_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    subprocess.run([*apt, "update"], check=False)
    for package in _PACKAGES:
        subprocess.run([*apt, "install", "-y", "--no-install-recommends", package], check=False)
        if find() is not None:
            return True
    return False


if __name__ == "__main__":
    sys.exit(None if install() else "There is no browser, and none could be installed: tests of pages will fail.")

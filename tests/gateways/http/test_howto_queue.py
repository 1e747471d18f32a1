"""The guide to the queue over HTTP shows what a reader sees. Its Python is run by tests/test_howto.py."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from oncemq.gateways.http.endpoints import ENDPOINTS
from oncemq.gateways.http.queue.replies import status_of
from oncemq.protocol import errors
from tests.acceptance.processes import SMALL
from tests.forking import ForkedBroker
from tests.pages import HOWTO, read, sessions_of_page

QUEUE = [each for each in ENDPOINTS if each.tag == "queue"]
GUIDE = HOWTO / "http-queue.md"
TEXT = read(GUIDE)


def test_every_request_is_answered_as_shown(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path / "data", *SMALL, http=True) as server:
        server.wait_until_http()
        for command, expected in sessions_of_page(GUIDE):
            command = command.replace("http://127.0.0.1:8002", server.http_url)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            assert done.stdout + done.stderr == expected, command


def test_every_endpoint_is_told() -> None:
    assert [each.path for each in QUEUE if f"| `{each.method}` | `{each.path}` |" not in TEXT] == []


def test_the_statuses_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| (`[A-Z_`, ]+`) \| (\d+) \|", TEXT, re.MULTILINE)
    assert len(rows) > 10
    for codes, status in rows:
        for code in re.findall(r"[A-Z_]+", codes):
            assert status_of(errors.BY_CODE[code]) == int(status), code

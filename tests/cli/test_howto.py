"""The guides to the command line and to security show what a reader sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncemq.spark.java import find_java
from oncemq.testing.spark import QUICK_START
from tests.forking import ForkedBroker
from tests.pages import HOWTO, blocks_of, read, sessions_of_page
from tests.terminal import Terminal


def test_every_command_of_the_command_line_answers_as_shown(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path / "data") as broker, Terminal(tmp_path, ONCEMQ_URL=broker.url) as terminal:
        for command, expected in sessions_of_page(HOWTO / "command-line.md"):
            if command != "oncemq serve &":
                terminal.run(command, expected)


@pytest.mark.spark
@pytest.mark.slow
def test_every_command_and_program_of_the_page_about_security_does_what_it_shows(tmp_path: Path) -> None:
    small = {"ONCEMQ_SEGMENT_BYTES": "6MiB", "ONCEMQ_BATCH_BYTES_MAX": "4MiB"}
    java = {"JAVA_HOME": find_java(), "JDK_JAVA_OPTIONS": QUICK_START}
    with Terminal(tmp_path, **small, **java) as terminal:
        terminal.use_free_ports(5554, 5555, 5564, 8002, 8102)
        terminal.run_blocks([*blocks_of(read(HOWTO / "secure.md"))])

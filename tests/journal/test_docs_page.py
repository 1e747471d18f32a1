"""docs/journal.md lists every event, and the version that the code writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec

from oncemq.engine.events import Event
from oncemq.protocol.version import JOURNAL_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "journal.md").read_text()


def test_the_page_lists_every_event_once() -> None:
    table = PAGE.split("### Events\n")[1].split("### ")[0]
    named = re.findall(r"`(\w\w)` ", table)
    kinds = [msgspec.inspect.type_info(kind) for kind in get_args(Event)]
    assert sorted(named) == sorted(str(kind.tag) for kind in kinds if isinstance(kind, msgspec.inspect.StructType))


def test_the_page_has_the_version_that_is_written() -> None:
    assert f"The format version is {JOURNAL_VERSION}." in PAGE
    versions = PAGE.split("### Versions\n")[1].split("\n\n")[0]
    assert f"\n| {JOURNAL_VERSION} |" in versions

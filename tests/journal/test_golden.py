"""Every format version, as files: an old journal must stay readable.

Each folder of `golden/` is a journal of 2 KiB segments with a snapshot. When the format changes, increase
the version and create another folder with `python -m tests.journal.test_golden`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from oncemq.disk.os_disk import OsDisk
from oncemq.journal.contract import RecordRef
from oncemq.journal.files.check import check
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.worker import InlineWorker
from oncemq.protocol.version import JOURNAL_VERSION
from tests.journal.rig import snapshot, write
from tests.simulation.environment.disk import SimDisk

GOLDEN = Path(__file__).parent / "golden"
WRITTEN = GOLDEN / f"version-{JOURNAL_VERSION}"
RECORD = RecordRef(2048 + 512 + 64, 7, 0, 5)


def written() -> SimDisk:
    disk = SimDisk(Random(1))
    journal = FileJournal(disk, InlineWorker(), journal_id=bytes(range(16)), segment_bytes=2048, block_bytes=512)
    list(journal.load().groups)
    write(journal, [b"first", b"second"], b"one", time_ms=1_700_000_000_000)
    snapshot(journal, [b"state", b"", b"of one"])
    write(journal, [b"p" * 700], b"two", time_ms=1_700_000_000_001)
    write(journal, [b"p" * 700], b"three", time_ms=1_700_000_000_002)
    journal.close()
    return disk


def files(disk: SimDisk) -> dict[str, bytes]:
    """Return the files that are not empty; a snapshot without the zeros after it."""
    paths = [f"{folder}/{name}" for folder in ("segments", "snapshots") for name in disk.list(folder) if name.isdigit()]
    content = {}
    for path in ["journal.meta", *paths]:
        file = disk.open(path)
        raw = file.read(0, file.size())
        content[path] = raw.rstrip(b"\0") if path.startswith("snapshots") else raw
    return content


def lines(raw: bytes) -> list[str]:
    return [raw[at : at + 32].hex() for at in range(0, len(raw), 32)]


def write_golden() -> None:
    """Only for a new format version."""
    for path, raw in files(written()).items():
        target = WRITTEN / f"{path}.hex"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines(raw)) + "\n")


def test_the_format_has_not_changed() -> None:
    for path, raw in files(written()).items():
        assert (WRITTEN / f"{path}.hex").read_text().split() == lines(raw), path


def test_there_is_a_journal_of_every_version() -> None:
    versions = range(1, JOURNAL_VERSION + 1)
    assert sorted(path.name for path in GOLDEN.iterdir()) == [f"version-{version}" for version in versions]


@pytest.fixture(params=range(1, JOURNAL_VERSION + 1), ids=lambda version: f"version {version}")
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source = GOLDEN / f"version-{request.param}"
    for path in source.rglob("*.hex"):
        target = tmp_path / path.relative_to(source).with_suffix("")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes.fromhex(path.read_text()))
    (tmp_path / "cut").mkdir()
    return tmp_path


def test_a_journal_of_every_version_is_read(golden: Path) -> None:
    assert check(OsDisk(golden)).is_good
    journal = FileJournal(OsDisk(golden), InlineWorker())
    loaded = journal.load()
    assert loaded.snapshot == [b"state", b"", b"of one"]
    groups = [(group.sequence, group.time_ms, group.events) for group in loaded.groups]
    assert groups == [
        (2, 1_700_000_000_001, b"two"),
        (3, 1_700_000_000_002, b"three"),
        (4, 1_700_000_000_002, b""),
    ]
    assert journal.read([RECORD])[0][0] == b"first"
    journal.close()


if __name__ == "__main__":
    write_golden()

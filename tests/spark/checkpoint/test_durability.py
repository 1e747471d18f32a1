"""The sync of a checkpoint: of its file system, of its files, or of everything."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from oncemq.spark.checkpoint import durability
from oncemq.spark.checkpoint.durability import sync_checkpoint


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are synced one by one."""
    paths: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(os, "sync", lambda: paths.append("everything"))
    return paths


def test_the_file_system_is_synced(tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sync_checkpoint(str(tmp_path))
    sync_checkpoint(f"file://{tmp_path}")
    assert synced == []
    monkeypatch.setattr(durability, "_syncfs", lambda: lambda _: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EIO)
    with pytest.raises(OSError, match="can't be synced"):
        sync_checkpoint(str(tmp_path))


@pytest.mark.parametrize("syncfs", [None, lambda _: -1])
def test_without_such_a_call_the_files_are_synced(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch, syncfs: object
) -> None:
    monkeypatch.setattr(durability, "_syncfs", lambda: syncfs)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.ENOSYS)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    sync_checkpoint(str(tmp_path))
    names = ["offsets/0", "offsets", "", ".."]
    assert synced == [os.path.normpath(tmp_path / name) for name in names]


def test_without_a_location_everything_is_synced(synced: list[str]) -> None:
    sync_checkpoint("")
    assert synced == ["everything"]


def test_remote_checkpoints_need_no_sync(synced: list[str]) -> None:
    sync_checkpoint("s3a://bucket/checkpoint")
    sync_checkpoint("/nowhere/at/all")
    assert synced == []

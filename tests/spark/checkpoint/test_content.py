"""What identifies a micro-batch, from the entries of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oncemq.protocol import errors
from oncemq.spark.checkpoint import location
from oncemq.spark.checkpoint.content import DIGEST_BYTES, batch_content
from oncemq.spark.checkpoint.location import CheckpointFiles, local_folder, refuse_damaged
from tests.spark.checkpoints import Checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "check point")


def test_a_micro_batch_is_identified_by_its_start_and_end(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, 10)
    checkpoint.plan(1, 20)
    first, second = (batch_content(checkpoint.location, batch) for batch in (0, 1))
    assert len(first) == DIGEST_BYTES
    assert first != second
    # The line with settings and times differs each time.
    checkpoint.plan(1, 20)
    assert batch_content(checkpoint.location, 1) == second
    checkpoint.plan(1, 21)
    assert batch_content(checkpoint.location, 1) != second
    checkpoint.plan(0, 11)
    checkpoint.plan(1, 20)
    assert batch_content(checkpoint.location, 1) != second


def test_the_order_of_keys_and_spaces_do_not_matter(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, 10)
    path = checkpoint.folder / "offsets" / "0"
    found = []
    for line in ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}', '{"a": 1, "b": [3]}', "-"):
        path.write_text(f"v1\n{{}}\n{line}\n-")
        found.append(batch_content(checkpoint.location, 0))
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_files_of_a_file_source_are_a_part_of_the_content(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, 10)
    (checkpoint.folder / "offsets" / "0").write_text('v1\n{}\n{"logOffset":0}')
    log = checkpoint.folder / "sources" / "0"
    log.mkdir(parents=True)
    found = set()
    for name in ("a.csv", "b.csv"):
        (log / "0").write_text(f'v1\n{{"path":"{name}"}}')
        found.add(batch_content(checkpoint.location, 0))
    assert len(found) == 2


def test_an_entry_that_vanished_is_an_error(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, 10)
    with pytest.raises(errors.OnceMQError, match="does not contain micro-batch 1"):
        batch_content(checkpoint.location, 1)


@pytest.mark.parametrize("where", ["", "hdfs+custom://host/folder", "dbfs:/folder", "/nowhere/at/all", "/"])
def test_a_checkpoint_that_can_t_be_read_is_reported_once(
    where: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "_unreadable", set())
    for _ in range(2):
        assert batch_content(where, 3) == b""
        assert CheckpointFiles(where).query_id() == ""
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_remote_checkpoint_is_read_through_arrow(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import fs

    checkpoint.plan(0, 10)
    (checkpoint.folder / "metadata").write_text(json.dumps({"id": "q"}))
    asked = []

    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        asked.append(uri)
        return fs.SubTreeFileSystem(str(checkpoint.folder.parent), fs.LocalFileSystem()), checkpoint.folder.name

    monkeypatch.setattr(location, "_from_uri", from_uri)
    assert batch_content("s3a://bucket/check", 0) == batch_content(checkpoint.location, 0)
    assert CheckpointFiles("s3a://bucket/check").query_id() == "q"
    assert set(asked) == {"s3://bucket/check"}


def test_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_folder("a/b") == str(tmp_path / "a" / "b")
    assert local_folder("file:/a%20b") == local_folder("file:///a%20b") == "/a b"
    assert [local_folder(where) for where in ("s3a://b/c", "dbfs:/c", "")] == [None, None, None]


def test_a_checkpoint_without_the_id_of_its_query_is_refused(checkpoint: Checkpoint) -> None:
    refuse_damaged(checkpoint.location)
    checkpoint.plan(0, 10)
    with pytest.raises(errors.CheckpointBehind, match="has lost its file 'metadata'"):
        refuse_damaged(checkpoint.location)
    for damaged in ("", "{}", '{"id":', "\0\0", "[]"):
        (checkpoint.folder / "metadata").write_text(damaged)
        with pytest.raises(errors.CheckpointBehind, match="is damaged in its file 'metadata'"):
            refuse_damaged(checkpoint.location)
    (checkpoint.folder / "metadata").write_text('{"id":"a"}')
    refuse_damaged(checkpoint.location)
    refuse_damaged("s3a://bucket/check")


def test_a_checkpoint_that_has_lost_the_plan_of_a_complete_micro_batch_is_refused(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "commits").mkdir(parents=True)
    (checkpoint.folder / "metadata").write_text('{"id":"a"}')
    for batch in range(2):
        checkpoint.plan(batch, batch)
        (checkpoint.folder / "commits" / str(batch)).touch()
    refuse_damaged(checkpoint.location)
    for batch in (1, 0):
        (checkpoint.folder / "offsets" / str(batch)).unlink()
        with pytest.raises(errors.CheckpointBehind, match="has the entry commits/1, but has lost offsets/1"):
            refuse_damaged(checkpoint.location)

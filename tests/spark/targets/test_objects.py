"""Targets in object stores: lost replies, late requests, lists of several pages, settings, the storage interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import obstore.exceptions
import pytest

from oncemq.protocol import errors
from oncemq.spark.targets.declarations import ParquetTarget
from oncemq.spark.targets.files import parquet
from oncemq.spark.targets.files.commit_log import new_manifest
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.folder import Folder, LocalFolder, visible_files
from oncemq.spark.targets.objects import commit_log, location
from oncemq.spark.targets.objects.object_folder import ObjectFolder
from tests.spark.targets.s3_server import STORAGE, S3Server
from tests.spark.targets.sink_drivers import (
    QUERY,
    SCHEMA,
    DeltaBucket,
    ParquetBucket,
    Sink,
    record_batches,
    schema_of,
    write,
    write_all,
)

#: What commits a batch: the first request of that kind after the files are uploaded.
COMMITS = {ParquetBucket: f"{QUERY}/commits/", DeltaBucket: "_delta_log/"}


@pytest.fixture(params=[ParquetBucket, DeltaBucket])
def sink(request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path) -> Sink:
    made: Sink = request.param(s3, tmp_path.name)
    made.run([range(3)], batch=0)
    return made


@pytest.mark.parametrize("how", ["error", "cut", "refuse"])
def test_a_commit_whose_reply_is_lost_is_recognised_as_its_own(sink: Sink, s3: S3Server, how: str) -> None:
    messages = write_all(sink.writer(), [range(3, 5), range(5, 8)], batch=1)
    s3.lose_reply("PUT", COMMITS[type(sink)], how)
    writer = sink.writer()
    try:
        writer.commit(messages, 1)
    except Exception:
        assert how != "error", "the client repeats the request, and finds its own commit"
        # The client does not repeat every request. Spark aborts the batch, and repeats it after the restart.
        writer.abort(messages, 1)
        sink.run([range(3, 8)], batch=1)
    assert s3.has_lost
    sink.run([range(8, 10)], batch=2)
    assert sink.numbers() == list(range(10))


def test_a_commit_that_is_executed_after_the_abort_loses_nothing(s3: S3Server, tmp_path: Path) -> None:
    """The request was on its way when the driver gave up. It arrives before the replay."""
    sink = ParquetBucket(s3, tmp_path.name)
    messages: list[Any] = write_all(sink.writer(), [range(3)], batch=0)
    sink.writer().abort(messages, 0)
    stages = [(message.identity.attempt, message.paths) for message in messages]
    manifest = new_manifest(QUERY, 0, stages, b"")
    commit_log.ObjectCommitLog(ObjectFolder(sink.target.path, STORAGE), QUERY)._create(manifest)
    sink.run([range(2), range(2, 3)], batch=0)
    assert sink.numbers() == [0, 1, 2]
    assert sink.leftovers() == []


def test_a_driver_that_dies_while_it_publishes_is_completed_by_the_next(s3: S3Server, tmp_path: Path) -> None:
    sink = ParquetBucket(s3, tmp_path.name)
    messages = write_all(sink.writer(), [range(3), range(3, 6)], batch=0)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        copy = ObjectFolder.copy

        def dying(self: ObjectFolder, source: str, target: str) -> bool:
            copy(self, source, target)
            raise ZeroDivisionError

        patch.setattr(ObjectFolder, "copy", dying)
        sink.writer().commit(messages, 0)
    assert sink.numbers() == [0, 1, 2]
    sink.run([range(6)], batch=0)
    assert sink.numbers() == list(range(6))
    assert sink.leftovers() == []


def test_a_replay_without_rows_completes_the_batch_of_the_driver_that_died(s3: S3Server, tmp_path: Path) -> None:
    """A query may compute other rows from the same messages, such as those of the last hour."""
    sink = ParquetBucket(s3, tmp_path.name)
    messages = write_all(sink.writer(), [range(3)], batch=0)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(ObjectFolder, "copy", lambda *_: 1 // 0)
        sink.writer().commit(messages, 0)
    sink.run([[]], batch=0)
    sink.run([range(3, 5)], batch=1)
    assert sink.numbers() == list(range(5))
    assert sink.leftovers() == []


def test_files_of_tasks_that_were_never_committed_are_not_seen(sink: Sink) -> None:
    write(sink.writer(), record_batches(range(100)), batch=1)
    assert sink.numbers() == [0, 1, 2]


def test_lists_of_several_pages_are_read_completely(s3: S3Server, tmp_path: Path) -> None:
    sink = ParquetBucket(s3, tmp_path.name, ("text",))
    write_all(sink.writer(), [range(5)], batch=0)
    s3.page_size, s3.pages = 2, 0
    sink.run([range(5)], batch=0)
    assert s3.pages > 3
    assert sink.leftovers() == []
    assert sink.numbers() == list(range(5))


def test_old_manifests_are_deleted(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "_MANIFESTS", 2)
    sink = ParquetBucket(s3, tmp_path.name)
    for batch in range(4):
        sink.run([[batch]], batch=batch)
    names = [name for name in s3.names(tmp_path.name) if "/commits/" in name]
    assert [name[-13:] for name in names] == ["00000002.json", "00000003.json"]


@pytest.mark.parametrize("kind", [ParquetBucket, DeltaBucket])
def test_partition_columns_may_have_any_values(s3: S3Server, tmp_path: Path, kind: Any) -> None:
    import pyarrow as pa

    sink = kind(s3, tmp_path.name, ("text",))
    texts = ["plain", "a b", "ä/ö", "50%", "a=b:c", "%2F", None]
    batch = pa.record_batch({"number": list(range(7)), "text": pa.array(texts)})
    sink.writer().commit([write(sink.writer(), [batch], batch=0)], 0)
    found = sink.table()
    assert sorted(zip(found["number"], found["text"], strict=True)) == list(enumerate(texts))


def test_a_folder_without_a_record_is_checked_against_its_newest_file(s3: S3Server, tmp_path: Path) -> None:
    sink = ParquetBucket(s3, tmp_path.name)
    sink.run([range(3)], batch=0)
    obstore.delete(s3.store(tmp_path.name), "_oncemq/schema.json")
    sink.schema = schema_of(number="string", text="string")
    with pytest.raises(errors.SettingInvalid, match=r"'number' of the .* has the type bigint"):
        sink.writer()


def test_a_changed_type_is_refused_in_a_store_too(sink: Sink) -> None:
    sink.schema = schema_of(number="string", text="string")
    with pytest.raises(errors.SettingInvalid, match=r"'number' of the .* has the type bigint"):
        sink.writer()


def test_settings_are_names_of_variables_and_never_leave_the_process(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ParquetTarget(path=f"s3a://lake/{tmp_path.name}", storage=STORAGE)
    options = parquet.prepare(target, SCHEMA)
    assert not any(secret in text for text in options.values() for secret in ('secret"', s3.url))
    assert options["path"] == f"s3://lake/{tmp_path.name}"
    monkeypatch.delenv("LAKE_KEY")
    with pytest.raises(errors.SettingInvalid, match=r"variable LAKE_KEY, which `storage.access_key_id`"):
        parquet.prepare(target, SCHEMA)
    assert parquet.prepare(ParquetTarget(path=target.path), SCHEMA)["storage"] == "{}"


def test_a_bucket_that_does_not_exist_is_one_sentence(s3: S3Server) -> None:
    with pytest.raises(errors.OnceMQError, match="the object store of s3://nowhere/x failed: ") as caught:
        parquet.prepare(ParquetTarget(path="s3://nowhere/x", storage=STORAGE), SCHEMA)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [ParquetBucket, DeltaBucket])
def test_a_store_without_conditional_puts_is_refused(s3: S3Server, tmp_path: Path, kind: Any) -> None:
    sink = kind(s3, tmp_path.name)
    sink.run([range(3)], batch=0)
    s3.ignores_conditions = True
    with pytest.raises(errors.SettingInvalid, match="ignores the condition of a put"):
        sink.writer()
    s3.ignores_conditions = False
    sink.run([range(3, 5)], batch=1)
    assert sink.numbers() == list(range(5))


def test_without_obstore_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(errors.MissingExtra, match=r'pip install "oncemq\[objects\]"'):
        ObjectFolder("s3://lake/x", {}).read("a")


# The storage interface.


@pytest.fixture(params=["disk", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "disk":
        return LocalFolder(str(tmp_path), Disk())
    request.getfixturevalue("s3")
    return ObjectFolder(f"s3://lake/{tmp_path.name}/", STORAGE)


def test_a_folder_is_read_updated_listed_and_emptied(folder: Folder) -> None:
    folder.prepare()
    assert folder.read("a/b.json") is None
    folder.update("a/b.json", lambda before: b"1" if before is None else b"wrong")
    folder.update("a/b.json", lambda before: (before or b"") + b"2")
    assert folder.read("a/b.json") == b"12"
    assert "a/b.json" in [file.path for file in folder.list("a")]
    assert all(file.modified_s > 0 for file in folder.list())
    with folder.open("a/b.json") as file:
        assert bytes(file.read()) == b"12"
    folder.remove(["a/b.json", "never/was"])
    assert folder.read("a/b.json") is None


def test_objects_that_do_not_exist_do_not_keep_others_from_being_deleted(tmp_path: Path) -> None:
    """Unlike S3, other stores report them, as this one does."""
    folder = ObjectFolder(f"file://{tmp_path}", {})
    names = [f"{number:02d}" for number in range(100)]
    for name in names[::2]:
        folder.create(name, b"1")
    folder.remove(names)
    assert list(folder.list()) == []


def test_a_folder_takes_the_files_of_a_task_and_readers_see_the_visible_ones(folder: Folder) -> None:
    folder.prepare()

    def write_files(local: str) -> list[Any]:
        Path(local, "day=1").mkdir(parents=True)
        Path(local, "day=1", "x.parquet").write_bytes(b"content")
        return [type("File", (), {"path": "day=1/x.parquet"})]

    for prefix in ("", "_hidden/1"):
        folder.place(prefix, write_files)
    assert folder.read("_hidden/1/day=1/x.parquet") == folder.read("day=1/x.parquet") == b"content"
    assert [file.path for file in visible_files(folder)] == ["day=1/x.parquet"]


@pytest.mark.usefixtures("s3")
def test_an_object_that_can_not_be_read_is_an_error_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ObjectFolder(f"s3://lake/{tmp_path.name}", STORAGE)
    folder.create("n", b"123")

    def fail(*_: object, **__: object) -> None:
        raise obstore.exceptions.GenericError("the store is away\n\nDebug source: …")

    with folder.open("n") as file:
        monkeypatch.setattr(obstore, "get_range", fail)
        with pytest.raises(OSError, match=r"^the store is away$"):
            file.read()


def test_an_update_that_loses_a_race_is_made_again(s3: S3Server, tmp_path: Path) -> None:
    folder = ObjectFolder(f"s3://lake/{tmp_path.name}", STORAGE)
    assert folder.create("n", b"1")
    others = iter([b"5", b"6"])

    def change(before: bytes | None) -> bytes:
        other = next(others, None)
        if other is not None:
            obstore.put(s3.store(tmp_path.name), "n", other)
        return str(int(before or 0) + 1).encode()

    folder.update("n", change)
    assert folder.read("n") == b"7"
    assert folder.create("n", b"x") is False


def test_urls_of_object_stores_are_recognised() -> None:
    for url in ("s3://a/b", "s3a://a", "gs://a/b", "abfss://c@a.dfs.core.windows.net/b", "az://c/b", "abfs://c@a/b"):
        assert location.is_object_url(url)
    for path in ("/a/s3://b", "file:///a", "hdfs://a/b", "s3", "a"):
        assert not location.is_object_url(path)

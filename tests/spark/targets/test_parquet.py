"""The Parquet sink: crashes at every step, folders of partition columns, types, and readers that know nothing."""

from __future__ import annotations

import datetime
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, MapType, StringType

from oncemq.protocol import errors
from oncemq.spark.targets.declarations import ParquetTarget
from oncemq.spark.targets.files import disk, parquet
from oncemq.spark.targets.files.commit_log import Entry, Manifest
from oncemq.spark.targets.files.file_writer import _group_rows
from oncemq.spark.targets.files.parquet import ParquetWriter
from tests.spark.targets.failing_disk import FailingDisk, Stopped
from tests.spark.targets.sink_drivers import QUERY, SCHEMA, Message, ParquetFolder, schema_of, write

#: Batch 1 is the one that fails; when it comes again, it has fewer partitions, and other rows in the first one.
BEFORE, PARTITIONS, AGAIN, AFTER = [range(4)], [range(4, 7), range(7, 10)], [range(9, 3, -1)], [range(10, 12)]
FAULTS = ["crash", "power failure", "error"]


def by_parity(numbers: Sequence[int]) -> Iterator[Any]:
    yield pa.record_batch({"number": numbers, "text": ["odd" if number % 2 else "even" for number in numbers]})


class Stream:
    """Batches into a folder with a disk that fails; batch 0 is there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = FailingDisk(root)
        self.sink = ParquetFolder(root, ("text",))
        self.sink.disk = self.disk
        self.run(BEFORE, 0)

    def writer(self) -> ParquetWriter:
        writer = self.sink.writer()
        assert isinstance(writer, ParquetWriter)
        writer.disk = self.disk
        return writer

    def stage(self, partitions: Sequence[Sequence[int]], batch: int) -> list[Message]:
        numbered = enumerate(partitions)
        return [write(self.writer(), by_parity(part), batch=batch, partition=index) for index, part in numbered]

    def run(self, partitions: Sequence[Sequence[int]], batch: int) -> None:
        self.writer().commit(self.stage(partitions, batch), batch)

    def suffer(self, fault: str, messages: list[Message]) -> None:
        """What comes after a commit that stopped."""
        if fault == "power failure":
            self.disk.cut_power()
        if fault == "error":
            self.writer().abort(messages, 1)

    def numbers(self) -> list[int]:
        seen = self.sink.numbers()
        assert seen == sorted(set(seen)), "duplicated"
        return seen


def every_step(folder: Path) -> Iterator[tuple[int, Stream]]:
    """A stream for each step that may be the one that fails: until none does."""
    for step in itertools.count(1):
        stream = Stream(folder / str(step))
        yield step, stream
        if not stream.disk.has_stopped:
            return


def test_power_that_fails_at_any_step_of_a_task_loses_and_doubles_no_row(tmp_path: Path) -> None:
    steps = 0
    for steps, stream in every_step(tmp_path):
        with stream.disk.stopping_in(steps):
            stream.stage(PARTITIONS, 1)
        stream.disk.cut_power()
        assert stream.numbers() == list(range(4))
        stream.run(AGAIN, 1)
        stream.disk.cut_power()
        assert stream.numbers() == list(range(10)), f"after step {steps}"
    assert steps > 10


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_step_of_a_commit_loses_and_doubles_no_row(tmp_path: Path, fault: str) -> None:
    steps = 0
    for steps, stream in every_step(tmp_path):
        messages = stream.stage(PARTITIONS, 1)
        with stream.disk.stopping_in(steps):
            stream.writer().commit(messages, 1)
        stream.suffer(fault, messages)
        assert set(range(4)) <= set(stream.numbers()) <= set(range(10)), f"after step {steps}"
        stream.run(AGAIN, 1)
        stream.run(AFTER, 2)
        stream.suffer(fault, [])
        assert stream.numbers() == list(range(12)), f"after step {steps}"
    assert steps > 10


@pytest.mark.parametrize(("first", "fault"), [(".parquet", fault) for fault in FAULTS] + [("manifest.json", FAULTS[1])])
def test_a_fault_at_any_step_of_the_replay_loses_and_doubles_no_row(tmp_path: Path, first: str, fault: str) -> None:
    """One driver was killed when a file of that kind had its name. Another one, whose tasks had written before that,
    stops while it finishes what the first one began."""
    steps = 0
    for steps, stream in every_step(tmp_path):
        messages = stream.stage(AGAIN, 1)
        stop_when_it_has_its_name(stream, first)
        with stream.disk.stopping_in(steps):
            stream.writer().commit(messages, 1)
        stream.suffer(fault, messages)
        stream.run([range(4, 10)], 1)
        assert stream.numbers() == list(range(10)), f"after step {steps}"
    assert steps > 10


def stop_when_it_has_its_name(stream: Stream, kind: str) -> None:
    rename = stream.disk.rename

    def stopping(source: str, target: str) -> None:
        rename(source, target)
        if target.endswith(kind):
            raise Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(stream.disk, "rename", stopping)
        stream.run(PARTITIONS, 1)
    assert len(stream.numbers()) < 10


def test_files_that_were_compacted_after_a_crash_are_not_missed(tmp_path: Path) -> None:
    """The batch was published as a whole; only its manifest was still there."""
    sink = ParquetFolder(tmp_path / "numbers")
    sink.run([range(3)], batch=0)
    (published,) = (tmp_path / "numbers").glob("*.parquet")
    published.unlink()
    manifest = Manifest(0, (Entry("_oncemq/moved.staged", published.name),))
    (tmp_path / "numbers" / "_oncemq" / QUERY / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    sink.run([range(3, 4)], batch=1)
    assert sink.numbers() == [3]


def test_a_published_file_that_is_gone_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "numbers")
    sink.run([range(3)], batch=0)
    folder = tmp_path / "numbers" / "_oncemq" / QUERY
    manifest = Manifest(1, (Entry("_oncemq/gone.staged", "gone.parquet"),))
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(errors.OnceMQError, match=r"gone\.parquet is committed, .*manifest\.json"):
        sink.run([range(3, 4)], batch=1)


def test_a_driver_that_hangs_does_not_make_another_one_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetFolder(tmp_path / "numbers")
    sink.run([range(3)], batch=0)
    monkeypatch.setattr(disk, "LOCK_WAIT_S", 0.1)
    lock = str(tmp_path / "numbers" / "_oncemq" / QUERY / "lock")
    with disk.Disk().locked(lock), pytest.raises(errors.OnceMQError, match="two drivers use one checkpoint"):
        sink.run([range(3, 4)], batch=1)
    sink.run([range(3, 4)], batch=1)
    assert sink.numbers() == list(range(4))


def test_a_reader_in_the_middle_never_sees_a_row_twice(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "numbers")
    sink.run([range(5)], batch=0)
    done = threading.Event()

    def read() -> list[list[int]]:
        seen: list[list[int]] = []
        while not done.is_set():
            # pyarrow lists also the folders whose names it ignores, and fails if one is removed meanwhile.
            with suppress(FileNotFoundError):
                seen.append(sink.numbers())
        return seen

    with ThreadPoolExecutor(1) as executor:
        reading = executor.submit(read)
        try:
            for batch in range(1, 6):
                numbers = range(batch * 5, batch * 5 + 5)
                sink.run([numbers[:2], numbers[2:]], batch=batch)
                sink.run([numbers], batch=batch)
        finally:
            done.set()
        assert [seen for seen in reading.result() if seen != sorted(set(seen))] == []
    assert sink.numbers() == list(range(30))


def test_rows_keep_their_order_within_a_partition(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "numbers")
    sink.run([range(100, 0, -1)], batch=0)
    assert sink.table()["number"] == list(range(100, 0, -1))


def test_partition_columns_are_folders_whatever_their_values_are(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "numbers", ("text",))
    texts = ["plain", "a b", "ä/ö", "50%", "a=b:c", "..", "%2F", "", None]
    batch = pa.record_batch({"number": list(range(9)), "text": pa.array(texts)})
    message = write(sink.writer(), [batch], batch=0)
    sink.writer().commit([message], 0)
    found = sink.table()
    pairs = dict(zip(found["number"], found["text"], strict=True))
    # A folder can't be named after an empty text; Spark and Hive make it null, too.
    assert pairs == dict(enumerate([*texts[:7], None, None]))
    assert (tmp_path / "numbers" / "text=plain").is_dir()


def test_types_come_back_as_they_were(tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "types")
    simple = {"b": "binary", "t": "timestamp", "n": "timestamp_ntz", "d": "decimal(10,2)", "y": "date", "f": "float"}
    sink.schema = schema_of(**simple, o="boolean", a=ArrayType(IntegerType()), m=MapType(StringType(), BinaryType()))
    sink.schema.add("s", schema_of(x="integer", t="timestamp"))
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    row = {
        "b": b"\x00\xff",
        "t": moment,
        "n": moment.replace(tzinfo=None),
        "d": Decimal("1.50"),
        "y": datetime.date(2026, 1, 2),
        "f": 0.5,
        "o": True,
        "a": [1, None],
        "m": [("k", b"v")],
        "s": {"x": 1, "t": moment},
    }
    berlin = pa.timestamp("us", "Europe/Berlin")
    types = {
        "b": pa.binary(),
        "t": berlin,
        "n": pa.timestamp("us"),
        "d": pa.decimal128(10, 2),
        "y": pa.date32(),
        "f": pa.float32(),
        "o": pa.bool_(),
        "a": pa.list_(pa.int32()),
        "m": pa.map_(pa.string(), pa.binary()),
        "s": pa.struct([("x", pa.int32()), ("t", berlin)]),
    }
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema=pa.schema(types))
    message = write(sink.writer(), [batch], batch=0)
    sink.writer().commit([message], 0)
    assert pyarrow.dataset.dataset(str(tmp_path / "types")).to_table().to_pylist() == [row, dict.fromkeys(row)]


@pytest.mark.parametrize(
    ("path", "partition_by", "message"),
    [
        ("hdfs://server/folder", (), "local or mounted"),
        ("folder", ("nothing",), "no column 'nothing'"),
        ("folder", ("text", "text"), "twice"),
        ("folder", ("number", "text"), "at least one column"),
    ],
)
def test_a_target_that_can_not_work_is_refused_at_once(path: str, partition_by: tuple[str, ...], message: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=message):
        parquet.prepare(ParquetTarget(path=path, partition_by=partition_by), SCHEMA)


def test_a_column_of_times_or_bytes_is_no_partition_column() -> None:
    schema = schema_of(at="timestamp", value="binary")
    for name in schema.names:
        with pytest.raises(errors.SettingInvalid, match="can't partition by"):
            parquet.prepare(ParquetTarget(path="folder", partition_by=(name,)), schema)


def test_large_rows_are_written_before_many_of_them_fill_the_memory() -> None:
    small, large = (pa.record_batch({"value": pa.array([b"x" * size] * 10)}) for size in (100, 8_000_000))
    assert _group_rows(small) == 65_536
    assert _group_rows(large) * 8_000_000 <= 64 * 1024 * 1024

"""What a restore finds out about an archive before it writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oncemq.protocol.errors import PipelineFailed, PipelineInvalid
from oncemq.spark.lake.data_source import read_part
from oncemq.spark.lake.files import list_files
from oncemq.spark.lake.plan import make_plan
from oncemq.spark.lake.restorer import plan_jobs
from oncemq.spark.lake.selection import Selection, make_selection
from oncemq.spark.lake.survey import TopicIncarnation, survey
from oncemq.spark.targets.files.disk import Disk
from tests.spark.lake.archives import NOON, add, row, rows
from tests.spark.targets.sink_drivers import QUERY

FORMATS = pytest.mark.parametrize("kind", ["parquet", "delta"])


def looked_at(folder: Path, **selection: Any) -> dict[str, list[TopicIncarnation]]:
    return survey(list_files(str(folder)), make_selection(**selection))


def read(folder: Path, part_bytes: int = 5000, **selection: Any) -> list[bytes]:
    """The values of one topic, part by part."""
    chosen = make_selection(**selection)
    [incarnations] = survey(list_files(str(folder)), chosen).values()
    parts = make_plan(incarnations, chosen, part_bytes=part_bytes).parts
    batches = [batch for part in parts for batch in read_part(part, chosen)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def values(*offsets: int) -> list[bytes]:
    return [b"%d" % offset for offset in offsets]


@FORMATS
def test_offsets_are_gathered_over_files_and_days(kind: str, tmp_path: Path) -> None:
    add(tmp_path, 0, rows("a b.c", range(900)) + rows("orders", range(5)), kind=kind)
    add(tmp_path, 1, rows("a b.c", range(900, 1000)), kind=kind)
    found = looked_at(tmp_path)
    assert list(found) == ["a b.c", "orders"]
    [incarnation] = found["a b.c"]
    assert (incarnation.coverage.runs, incarnation.topic_id, len(incarnation.files)) == (((0, 1000),), 7, 3)
    assert (incarnation.first_time_us, incarnation.coverage.missing) == (int(NOON.timestamp()) * 1_000_000, 0)


@FORMATS
def test_parts_come_in_the_order_of_the_offsets_whatever_the_files_are(kind: str, tmp_path: Path) -> None:
    # Files of later batches may hold earlier offsets, and a file may hold any order.
    add(tmp_path, 0, rows("t", [9, 5, 6, 8, 7]), kind=kind)
    add(tmp_path, 1, rows("t", [1, 0, 12]), kind=kind)
    add(tmp_path, 2, rows("t", [4, 3, 2, 10, 11]), kind=kind)
    for part_bytes in (1, 150, 10**9):
        assert read(tmp_path, part_bytes) == values(*range(13))


def test_no_more_parts_than_one_commit_can_publish(tmp_path: Path) -> None:
    add(tmp_path, 0, rows("t", range(100)) + rows("t", range(50), topic_id=8, time=NOON + timedelta(days=1)))
    [incarnations] = looked_at(tmp_path).values()
    plan = make_plan(incarnations, Selection(), part_bytes=1, parts_max=10)
    assert 5 < len(plan.parts) <= 10
    assert plan.count == 150
    with pytest.raises(PipelineFailed, match="too much for one restore"):
        make_plan(incarnations, Selection(), parts_max=2)


def test_a_part_opens_only_files_that_have_something_of_it(tmp_path: Path) -> None:
    for batch in range(10):
        add(tmp_path, batch, rows("t", range(batch * 10, batch * 10 + 10)))
    [incarnations] = looked_at(tmp_path).values()
    plan = make_plan(incarnations, Selection(), part_bytes=int(incarnations[0].row_bytes * 15.5))
    assert [len(part.paths) for part in plan.parts] == [2, 2, 2, 2, 2, 2, 1]


@FORMATS
def test_a_message_that_is_there_twice_is_an_error(kind: str, tmp_path: Path) -> None:
    add(tmp_path, 0, rows("orders", range(10)), kind=kind)
    add(tmp_path, 0, rows("orders", [3, 4, 5, 8]), kind=kind, query="another checkpoint")
    with pytest.raises(PipelineFailed, match=r"4 of the messages of 'orders' more than .*offsets 3 to 5, 8 to 8"):
        looked_at(tmp_path)
    assert looked_at(tmp_path, offsets="6:8")["orders"][0].coverage.runs == ((6, 8),)


def test_messages_that_are_not_there_are_counted(tmp_path: Path) -> None:
    add(tmp_path, 0, rows("orders", [5, 6, 9, 12]) + rows("whole", [3, 4]))
    warnings: list[str] = []
    jobs = plan_jobs(str(tmp_path), make_selection(), to="", prefix="", warn=warnings.append)
    assert [(job.source, job.missing) for job in jobs] == [("orders", 4), ("whole", 0)]
    [warning] = warnings
    assert "does not contain 4 of the messages of 'orders' between offsets 5 and 12: they expired" in warning


def test_a_topic_that_was_made_again_comes_after_the_former_one(tmp_path: Path) -> None:
    later = NOON + timedelta(days=3)
    add(tmp_path, 0, [row("t", 0, topic_id=3, time=later, value=b"later 0")])
    add(tmp_path, 1, rows("t", range(2), topic_id=9))
    add(tmp_path, 2, [row("t", 1, topic_id=3, time=NOON, value=b"later 1")])
    # By the first time stamp of each, which is that of offset 1 here.
    add(tmp_path, 3, [row("t", 2, topic_id=9, time=NOON - timedelta(hours=1))])
    assert read(tmp_path) == [*values(0, 1, 2), b"later 0", b"later 1"]
    with pytest.raises(PipelineInvalid, match="was deleted and created again, and had each offset 2 times"):
        plan_jobs(str(tmp_path), make_selection(topic="t", offsets="0:1"), to="", prefix="")


@FORMATS
def test_times_and_offsets_select(kind: str, tmp_path: Path) -> None:
    add(tmp_path, 0, rows("t", range(1500)), kind=kind)
    midnight = datetime(2026, 5, 2, tzinfo=UTC)
    assert read(tmp_path, since=midnight) == values(*range(720, 1500))
    assert read(tmp_path, until=midnight) == values(*range(720))
    assert read(tmp_path, since=midnight, until=midnight + timedelta(seconds=61)) == values(720, 721)
    assert read(tmp_path, offsets="5:8") == values(5, 6, 7)
    assert read(tmp_path, offsets="1498:") == values(1498, 1499)
    assert read(tmp_path, offsets=":2", since=NOON + timedelta(minutes=1)) == values(1)
    assert looked_at(tmp_path, since=midnight + timedelta(days=9)) == {}


@FORMATS
def test_times_that_rise_and_fall_select_too(kind: str, tmp_path: Path) -> None:
    # As where messages that were restored have kept theirs.
    times = [NOON, NOON + timedelta(hours=2), NOON + timedelta(hours=1), NOON - timedelta(hours=1), NOON]
    add(tmp_path, 0, [row("t", offset, time=time) for offset, time in enumerate(times)], kind=kind)
    for part_bytes in (1, 10**9):
        assert read(tmp_path, part_bytes, since=NOON, until=NOON + timedelta(hours=2)) == values(0, 2, 4)


def test_folders_of_other_topics_and_days_are_not_opened(tmp_path: Path) -> None:
    add(tmp_path, 0, rows("t", range(1500)) + rows("u", [0]))
    for path in [*tmp_path.glob("topic=t/date=2026-05-01/*"), *tmp_path.glob("topic=u/*/*")]:
        path.write_bytes(b"no Parquet")
    assert read(tmp_path, topic="t", since=datetime(2026, 5, 2, tzinfo=UTC)) == values(*range(720, 1500))
    with pytest.raises(PipelineFailed, match="can't be read"):
        looked_at(tmp_path)


@pytest.mark.parametrize("offsets", ["5", "5:5", "9:3", "-1:3", "a:b", "1:2:3"])
def test_a_range_that_is_none_is_refused(offsets: str) -> None:
    with pytest.raises(PipelineInvalid, match="is not a range of offsets"):
        make_selection(offsets=offsets)


def test_times_that_select_nothing_or_several_things_are_refused() -> None:
    with pytest.raises(PipelineInvalid, match="these times select nothing"):
        make_selection(since=NOON, until=NOON)
    with pytest.raises(PipelineInvalid, match="no time zone"):
        make_selection(since=NOON.replace(tzinfo=None))


def test_where_messages_go_has_to_be_clear(tmp_path: Path) -> None:
    add(tmp_path, 0, rows("a", [0]) + rows("b", [0]))
    folder = str(tmp_path)
    for selection, to, prefix, words in (
        (make_selection(), "c", "", "2 topics can't be restored into one topic; choose one: a, b"),
        (make_selection(offsets="0:1"), "", "", "by their offsets; choose one: a, b"),
        (make_selection(), "c", "d", "not both"),
        (make_selection(topic="c"), "", "", "contains no selected message of topic 'c'"),
    ):
        with pytest.raises(PipelineInvalid, match=words):
            plan_jobs(folder, selection, to=to, prefix=prefix)
    assert [job.target for job in plan_jobs(folder, make_selection(), to="", prefix="old.")] == ["old.a", "old.b"]
    assert [job.target for job in plan_jobs(folder, make_selection(topic="b"), to="c", prefix="")] == ["c"]
    with pytest.raises(PipelineInvalid, match="is not an archive"):
        plan_jobs(str(tmp_path / "topic=a"), make_selection(), to="", prefix="")


def test_half_a_batch_is_not_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, 0, rows("a", range(3)))
    made = rows("a", range(3, 6)) + rows("b", range(3))
    with monkeypatch.context() as patch:
        rename = Disk.rename
        renamed: list[str] = []

        def once(disk: Disk, source: str, target: str) -> None:
            if target.endswith(".parquet"):
                if renamed:
                    raise OSError("the power failed")
                renamed.append(target)
            rename(disk, source, target)

        patch.setattr(Disk, "rename", once)
        with pytest.raises(OSError, match="power"):
            add(tmp_path, 1, made)
    with pytest.raises(PipelineFailed, match="was interrupted while it published a batch"):
        looked_at(tmp_path)
    # The archive's next run finishes it, whatever it brings itself.
    add(tmp_path, 1, made, query=QUERY)
    assert [incarnations[0].coverage.runs for incarnations in looked_at(tmp_path).values()] == [((0, 6),), ((0, 3),)]


def test_an_archive_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    add(tmp_path, 0, rows("a", range(3)))
    [incarnations] = looked_at(tmp_path).values()
    [part] = make_plan(incarnations, Selection()).parts
    for path in tmp_path.glob("topic=a/*/*"):
        path.unlink()
    add(tmp_path, 1, rows("a", range(2)))
    [left] = tmp_path.glob("topic=a/*/*")
    left.rename(part.paths[0])
    with pytest.raises(PipelineFailed, match="had 3 messages when the restore started, but now have 2 rows"):
        list(read_part(part, Selection()))

"""Names of folders, and which subscription and checkpoint an archive has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncemq.protocol.errors import PipelineInvalid
from oncemq.spark.lake import archiver, layout
from oncemq.spark.lake.files import list_files
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget
from tests.spark.lake.archives import add, row


@pytest.mark.parametrize("topic", ["orders", "a b.c", "ä/ö", "50%", "a=b:c", "..", "007", "%2F", "null"])
def test_a_topic_is_found_again_by_its_folder(topic: str, tmp_path: Path) -> None:
    assert layout.parse_topic_folder(layout.topic_folder(topic)) == topic
    add(tmp_path, 0, [row(topic, 0)])
    assert (tmp_path / layout.topic_folder(topic) / "date=2026-05-01").is_dir()
    [file] = list_files(str(tmp_path))
    assert (file.topic, file.date) == (topic, "2026-05-01")


def test_a_topic_that_no_folder_can_have_the_name_of_is_refused(tmp_path: Path) -> None:
    layout.refuse_topic("x" * 249)
    for topic in ("x" * 250, "ä" * 42, layout.NULL_FOLDER):
        with pytest.raises(PipelineInvalid, match=topic):
            archiver.archive_pipeline(str(tmp_path), topic=topic)


def test_a_folder_keeps_its_format(tmp_path: Path) -> None:
    assert isinstance(archiver.archive_pipeline(str(tmp_path / "new"), topic="orders").target, ParquetTarget)
    add(tmp_path / "old", 0, [row("orders", 0)], kind="delta")
    assert isinstance(archiver.archive_pipeline(str(tmp_path / "old"), topic="orders").target, DeltaTarget)
    with pytest.raises(PipelineInvalid, match="has the format delta, not parquet"):
        archiver.archive_pipeline(str(tmp_path / "old"), topic="orders", format="parquet")


def test_an_archive_goes_on_with_the_subscription_that_it_began_with(tmp_path: Path) -> None:
    first = archiver.archive_pipeline(str(tmp_path / "one"), topic="orders")
    # As a run does.
    Path(first.checkpoint).mkdir(parents=True)
    second = archiver.archive_pipeline(str(tmp_path / "one"), topic="orders")
    assert (second.subscription, second.checkpoint) == (first.subscription, first.checkpoint)
    # Another archive of the same topic must not ack what this one has not archived.
    other = archiver.archive_pipeline(str(tmp_path / "two"), topic="orders")
    assert other.subscription != first.subscription


def test_names_that_are_given_are_taken(tmp_path: Path) -> None:
    lake, own = str(tmp_path / "lake"), str(tmp_path / "own")
    given = archiver.archive_pipeline(lake, topic="orders", subscription="a/b")
    assert (given.subscription, given.checkpoint) == ("a/b", str(tmp_path / "lake/_checkpoints/a%2Fb"))
    given = archiver.archive_pipeline(lake, topic="orders", subscription="a", checkpoint=own)
    assert (given.subscription, given.checkpoint) == ("a", own)
    with pytest.raises(PipelineInvalid, match="together with its subscription"):
        archiver.archive_pipeline(lake, topic="orders", checkpoint=own)


def test_of_several_subscriptions_one_has_to_be_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "_checkpoints" / name).mkdir(parents=True)
    with pytest.raises(PipelineInvalid, match="choose one: a, b"):
        archiver.archive_pipeline(str(tmp_path), topic="orders")
    assert archiver.archive_pipeline(str(tmp_path), topic="orders", subscription="b").subscription == "b"


def test_a_topic_that_is_left_out_is_not_taken_for_a_deleted_one(tmp_path: Path) -> None:
    def run(**rest: Any) -> str:
        return archiver.archive_pipeline(str(tmp_path), **rest).checkpoint

    offsets = Path(run(topics=["a.b", "a.c"], subscription="s")) / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "9").write_text('v1\n{}\n{"broker": "b", "topics": {"a.b": [1, 5]}}')
    # As Spark writes it; the last entry counts.
    (offsets / "10").write_text('v1\n{}\n{"broker": "b", "topics": {"a.b": [1, 5], "a.c": [2, 0]}}')
    for good in ({"topics": ["a.c", "a.b", "d"]}, {"pattern": "a.*"}, {"topic": "d", "subscription": "other"}):
        run(**good)
    for bad in ({"topic": "a.b"}, {"pattern": "d.*"}):
        with pytest.raises(PipelineInvalid, match=r"also archives 'a.[bc]'"):
            run(**bad)
    (offsets / "11").write_text("v1\n")
    run(topic="a.b")


def test_what_is_wrong_with_an_archive_is_known_before_spark_starts(tmp_path: Path) -> None:
    for wrong in ({}, {"topic": "a", "pattern": "b"}, {"topic": "a", "every": "often"}, {"topic": "a.*"}):
        with pytest.raises(PipelineInvalid):
            archiver.archive_pipeline(str(tmp_path), **wrong)  # type: ignore[arg-type]
    with pytest.raises(PipelineInvalid, match="not a format of archives"):
        archiver.archive_pipeline(str(tmp_path), topic="a", format="csv")

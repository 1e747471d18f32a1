"""The options of `format("oncemq")`: mistakes are reported before anything is read or written."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import StructType

from oncemq.protocol import errors
from oncemq.spark.options import sink_options, source_options
from oncemq.spark.source.offset_spec import EARLIEST, LATEST, Timestamp, TopicOffsets
from oncemq.spark.source.topic_selection import TopicSelection
from oncemq.spark.targets.delta.sink import DeltaSink
from oncemq.spark.targets.files.parquet import ParquetSink
from oncemq.spark.targets.postgres.sink import PostgresSink


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "none of them is given"),
        ({"subscribe": "orders"}, "use 'topics'"),
        ({"topic": "a", "pattern": "b.*"}, "'topic' and 'pattern' are given"),
        ({"topics": '["a", 5]'}, "list of names"),
        ({"topics": "[a"}, "not valid JSON"),
        ({"pattern": "ord*"}, "whole levels"),
        ({"topic": "a", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"topic": "a", "color": "green"}, "no option 'color'.*the options are assign, "),
        ({"topic": "a", "path": "orders"}, "topics have no path"),
        ({"topic": "a", "provider": "oncemq", "option.topic": "a", "owner": "me"}, "CREATE TEMPORARY VIEW"),
        ({"topic": "a", "subscription": "s"}, "'subscription' is for streams"),
        ({"topic": "a", "maxBytesPerTrigger": "1m"}, "'maxBytesPerTrigger' is for streams"),
        ({"regex": "a("}, "not a valid regular expression"),
        ({"assign": '{"a": [0, 1]}'}, "one partition, 0"),
        ({"assign": "[]"}, "JSON object by topic"),
        ({"topic": "a", "startingOffsets": '{"a": {"1": 5}}'}, "one partition, 0"),
        ({"topic": "a", "startingOffsets": '{"a": -3}'}, "'earliest', 'latest', an offset"),
        ({"topic": "a", "startingTimestamp": "noon"}, "milliseconds since 1970"),
        ({"topic": "a", "startingTimestamp": "1767225600000000"}, "milliseconds since 1970"),
        ({"topic": "a", "endingOffsetsByTimestamp": '{"a": 1767225600000000000}'}, "milliseconds since 1970"),
        ({"topic": "a", "startingOffsetsByTimestamp": "5"}, "JSON object by topic"),
        ({"topic": "a", "endingOffsetsByTimestamp": '{"b": 5}'}, "names topic 'b', which is not read"),
        ({"topic": "a", "startingOffsetsByTimestampStrategy": "earliest"}, "'error' or 'latest'"),
        ({"topic": "a", "partitions": "2", "minPartitions": "2"}, "choose one"),
        ({"topic": "a", "maxBytesPerPartition": "10 MB"}, "number of bytes"),
        ({"topic": "a", "startingOffsets": "yesterday"}, "a time with a zone"),
        ({"topic": "a", "startingOffsets": "2026-01-01T00:00:00"}, "a time with a zone"),
        ({"topic": "a", "startingOffsets": '{"b": 5}'}, "names topic 'b', which is not read"),
        ({"pattern": "x.*", "endingOffsets": '{"b": 5}'}, "names topic 'b', which is not read"),
        ({"topic": "a", "partitions": "many"}, "whole number"),
        ({"topic": "a", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"topic": "a", "columns": "value,size"}, "no column 'size'"),
        ({"topic": "a", "columns": "value,value"}, "twice"),
        ({"topic": "a", "timeout": "soon"}, "a duration"),
        ({"topic": "a", "url": "file:./data"}, "oncemq serve"),
    ],
)
def test_a_mistake_in_reading_is_explained(options: dict[str, str], text: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=text):
        source_options(options, is_stream=False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "a"}, "needs the option 'subscription'"),
        ({"topic": "a", "subscription": "s", "endingOffsets": "latest"}, "a stream has no end"),
        ({"topic": "a", "subscription": "s", "endingTimestamp": "5"}, "a stream has no end"),
        ({"topic": "a", "subscription": "s", "endingOffsetsByTimestamp": '{"a": 5}'}, "a stream has no end"),
        ({"pattern": "a.*", "subscription": "s", "startingTimestamp": "5"}, "'topics' or 'regex'"),
        ({"topic": "a", "subscription": "s", "maxTriggerDelay": "5m"}, "'minOffsetsPerTrigger' waits"),
        (
            {"topic": "a", "subscription": "s", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "'minOffsetsPerTrigger' is 5",
        ),
        ({"pattern": "a.*", "subscription": "s", "startingOffsets": "2026-01-01T00:00:00Z"}, "'earliest' or 'latest'"),
    ],
)
def test_a_mistake_in_a_stream_is_explained(options: dict[str, str], text: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=text):
        source_options(options, is_stream=True)


@pytest.mark.parametrize(
    ("options", "is_stream", "text"),
    [
        ({"topic": "a", "writeId": "w"}, True, "identified by its checkpoint"),
        ({"topic": "a", "writeNumber": "1"}, False, "no 'writeId' is given"),
        ({"topic": "a", "timestamps": "mine"}, False, "'broker' or 'keep'"),
        ({"topic": "a", "retain": "2h"}, False, "create=true"),
        ({"topic": "a", "create": "true", "retain": "long"}, False, "a duration"),
        ({"topic": "a", "creates": "true"}, False, "did you mean 'create'"),
        ({"topic": "a", "queryName": "q"}, False, "no option 'queryname'"),
        ({"topic": "a", "truncate": "false"}, True, "no option 'truncate'"),
        ({"topic": "a", "path": "a"}, True, "topics have no path"),
    ],
)
def test_a_mistake_in_writing_is_explained(options: dict[str, str], is_stream: bool, text: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=text):
        sink_options(options, is_stream=is_stream)


def test_options_are_understood_whatever_their_capitals() -> None:
    given = {"TOPICS": "a, b", "startingoffsets": '{"a": 5, "b": "2026-01-01T00:00:00Z"}'}
    options = source_options(given, is_stream=False)
    assert options.selection == TopicSelection(("a", "b"))
    assert options.start == TopicOffsets(EARLIEST, {"a": 5, "b": Timestamp(1_767_225_600_000)})
    assert options.end == TopicOffsets(LATEST)


def test_the_address_comes_from_the_environment_where_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMQ_URL", "oncemq://10.0.0.1:5554")
    assert source_options({"topic": "a"}, is_stream=False).broker.url == "oncemq://10.0.0.1:5554"
    assert sink_options({"topic": "a", "url": "tcp://[::1]:5"}, is_stream=False).broker.url == "tcp://[::1]:5"
    monkeypatch.delenv("ONCEMQ_URL")
    assert source_options({"topic": "a"}, is_stream=False).broker.url == "oncemq://127.0.0.1:5554"


def test_what_spark_adds_to_a_stream_is_no_mistake() -> None:
    assert sink_options({"topic": "a", "queryname": "q", "checkpointlocation": "c"}, is_stream=True).topic == "a"


@pytest.mark.parametrize("sink", [ParquetSink, DeltaSink, PostgresSink])
def test_targets_refuse_unknown_options(sink: type[DataSource]) -> None:
    options = CaseInsensitiveDict({"path": "p", "url": "u", "table": "t", "mode": "x"})
    with pytest.raises(errors.SettingInvalid, match="there is no option"):
        sink(options).streamWriter(StructType(), False)

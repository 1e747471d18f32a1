"""The options of `format("oncemq")`: mistakes are reported before anything is read or written."""

from __future__ import annotations

import pytest

from oncemq.protocol import errors
from oncemq.spark.options import sink_options, source_options
from oncemq.spark.source.offset_spec import EARLIEST, LATEST, Timestamp, TopicOffsets


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "none of them is given"),
        ({"subscribe": "orders"}, "does not know the given 'subscribe'"),
        ({"topic": "a", "pattern": "b.*"}, "'topic' and 'pattern' are given"),
        ({"topics": '["a", 5]'}, "list of names"),
        ({"topics": "[a"}, "not valid JSON"),
        ({"pattern": "ord*"}, "whole levels"),
        ({"topic": "a", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"topic": "a", "startingOffsets": "yesterday"}, "a time with a zone"),
        ({"topic": "a", "startingOffsets": "2026-01-01T00:00:00"}, "a time with a zone"),
        ({"topic": "a", "startingOffsets": '{"b": 5}'}, "names topic 'b', which is not read"),
        ({"pattern": "x.*", "endingOffsets": '{"b": 5}'}, "names topic 'b', which is not read"),
        ({"topic": "a", "maxOffsetsPerTrigger": "many"}, "whole number"),
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
    ],
)
def test_a_mistake_in_writing_is_explained(options: dict[str, str], is_stream: bool, text: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=text):
        sink_options(options, is_stream=is_stream)


def test_options_are_understood_whatever_their_capitals() -> None:
    given = {"TOPICS": "a, b", "startingoffsets": '{"a": 5, "b": "2026-01-01T00:00:00Z"}', "path": "Spark's own"}
    options = source_options(given, is_stream=False)
    assert options.topics == ("a", "b")
    assert options.start == TopicOffsets(EARLIEST, {"a": 5, "b": Timestamp(1_767_225_600_000)})
    assert options.end == TopicOffsets(LATEST)


def test_the_address_comes_from_the_environment_where_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMQ_URL", "tcp://10.0.0.1:5555")
    assert source_options({"topic": "a"}, is_stream=False).url == "tcp://10.0.0.1:5555"
    assert sink_options({"topic": "a", "url": "tcp://[::1]:5"}, is_stream=False).url == "tcp://[::1]:5"

"""The tables in docs/spark.md of the options of Spark's Kafka source and sink: what they claim is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncemq.protocol import errors
from oncemq.spark.option_names import KAFKA_SINK, KAFKA_SOURCE
from oncemq.spark.options import SINK, SOURCE, sink_options, source_options

_PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
#: The options of Spark 4.3's Kafka source and sink.
_SOURCE = [
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
    "kafka.*",
]
_SINK = ["kafka.bootstrap.servers", "topic", "includeHeaders", "kafka.*"]
#: A value that Kafka's source accepts.
_VALUES = {
    "assign": '{"orders": [0]}',
    "startingOffsets": '{"orders": {"0": -2}}',
    "startingTimestamp": "1000",
    "startingOffsetsByTimestamp": '{"orders": {"0": 1000}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": '{"orders": {"0": -1}}',
    "endingTimestamp": "1000",
    "endingOffsetsByTimestamp": '{"orders": {"0": 1000}}',
    "failOnDataLoss": "false",
    "maxTriggerDelay": "5m",
}


def rows(head: str) -> dict[str, tuple[list[str], str]]:
    """Kafka's option → our options, and the remark."""
    _, _, rest = _PAGE.read_text().partition(f"| {head} | here | |\n| --- | --- | --- |\n")
    lines = rest.partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {theirs.strip("`"): (re.findall("`([^`]+)`", ours), remark) for theirs, ours, remark in cells}


READ, WRITTEN = rows("option of Kafka's source"), rows("option of Kafka's sink")


def test_the_tables_have_every_option() -> None:
    assert sorted(READ) == sorted(_SOURCE)
    assert sorted(WRITTEN) == sorted(_SINK)
    assert KAFKA_SOURCE.keys() == {name for name, (ours, _) in READ.items() if ours != [name]} - {"kafka.*"}
    assert KAFKA_SINK.keys() == {name for name, (ours, _) in WRITTEN.items() if ours != [name]} - {"kafka.*"}


@pytest.mark.parametrize("name", READ)
def test_an_option_of_the_source_is_accepted_or_refused_as_the_table_says(name: str) -> None:
    ours, remark = READ[name]
    assert set(ours) <= set(SOURCE)
    is_stream = not name.startswith("ending")
    options = {"topic": "orders", "subscription": "s"} if is_stream else {"topic": "orders"}
    if name == "assign":
        del options["topic"]
    if name == "maxTriggerDelay":
        options["minOffsetsPerTrigger"] = "5"
    given = {**options, name.replace("*", "fetch.max.bytes"): _VALUES.get(name, "5")}
    if remark.startswith("the same"):
        source_options(given, is_stream=is_stream)
        if "an error in a batch read" in remark:
            with pytest.raises(errors.SettingInvalid, match=f"'{name}' is for streams"):
                source_options({"topic": "orders", name: given[name]}, is_stream=False)
        return
    with pytest.raises(errors.SettingInvalid, match="is an option of Spark's Kafka connector") as refused:
        source_options(given, is_stream=is_stream)
    assert all(f"'{each}'" in refused.value.text for each in ours), refused.value.text


@pytest.mark.parametrize("name", WRITTEN)
def test_an_option_of_the_sink_is_accepted_or_refused_as_the_table_says(name: str) -> None:
    ours, remark = WRITTEN[name]
    assert set(ours) <= set(SINK)
    given = {"topic": "orders", name.replace("*", "acks"): "x"}
    for is_stream in (False, True):
        if remark.startswith("the same"):
            sink_options(given, is_stream=is_stream)
            continue
        with pytest.raises(errors.SettingInvalid, match="is an option of Spark's Kafka connector") as refused:
            sink_options(given, is_stream=is_stream)
        assert all(f"'{each}'" in refused.value.text for each in ours), refused.value.text

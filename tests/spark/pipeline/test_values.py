"""Values become columns, rows become messages. Batches of rows written here stand for streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest

from oncemq.protocol.errors import PipelineFailed, PipelineInvalid
from oncemq.spark.pipeline.model import Encoding, Transform, Value, Watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JSON = Value(format="json", schema="id bigint, name string, at timestamp, tags array<string>", malformed="keep")
CSV = Value(format="csv", schema="id bigint, name string", malformed="keep")


def messages(spark: SparkSession, values: Sequence[bytes]) -> DataFrame:
    count = len(values)
    columns = {"topic": ["orders"] * count, "offset": range(count), "value": list(values)}
    return spark.createDataFrame(pyarrow.table(columns))


def rows_of(spark: SparkSession, value: Value, values: Sequence[bytes]) -> list[dict[str, Any]]:
    from oncemq.spark.pipeline.values.decoder import decode_values

    found = decode_values(messages(spark, values), value, ("offset",)).orderBy("message_offset").collect()
    return [row.asDict(recursive=True) for row in found]


BAD_JSON = [
    b"",
    b"  ",
    b"null",
    b"5",
    b"[]",
    b'[{"id": 1}]',
    b'{"id": 1} and more',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1},{"id": 2}',
    b'{"id": 1}}',
    b'{"id": 1}} and more',
    b'{"id":',
    b"{'id': 1}",
    b'{"id": "many"}',
    b'{"id": 1.5}',
    b'{"name": "\xff"}',
    b"\xff\xfe",
]


def test_json_of_the_schema_becomes_columns(spark: SparkSession) -> None:
    good = [b'{"id": 1, "name": "caf\xc3\xa9", "tags": ["a", null]}', b' {"other": 3, "name": null}\n', b"{}"]
    rows = rows_of(spark, JSON, good)
    assert list(rows[0]) == ["id", "name", "at", "tags", "malformed", "message_offset"]
    assert [(row["id"], row["name"], row["tags"], row["malformed"]) for row in rows] == [
        (1, "café", ["a", None], None),
        (None, None, None, None),
        (None, None, None, None),
    ]


def test_json_that_is_not_of_the_schema_is_kept_as_nulls_with_its_text(spark: SparkSession) -> None:
    rows = rows_of(spark, JSON, BAD_JSON)
    assert [row["malformed"] for row in rows] == [value.decode("utf-8", "replace") for value in BAD_JSON]
    assert {row["id"] for row in rows} | {row["name"] for row in rows} == {None}


def test_csv_of_the_schema_becomes_columns(spark: SparkSession) -> None:
    rows = rows_of(spark, CSV, [b"1,x", b"2,y\r\n", b'3,"a,b"', b'4,"say ""so"""', b",", b"5,"])
    assert [(row["id"], row["name"], row["malformed"]) for row in rows] == [
        (1, "x", None),
        (2, "y", None),
        (3, "a,b", None),
        (4, 'say "so"', None),
        (None, None, None),
        (5, None, None),
    ]


def test_csv_that_is_not_of_the_schema_is_kept_as_nulls_with_its_text(spark: SparkSession) -> None:
    bad = [b"1", b"1,x,y", b"", b"many,x", b"1,\xff"]
    rows = rows_of(spark, CSV, bad)
    assert [row["malformed"] for row in rows] == [value.decode("utf-8", "replace") for value in bad]
    assert {row["id"] for row in rows} == {None}


def test_csv_may_have_another_delimiter(spark: SparkSession) -> None:
    [row] = rows_of(spark, Value(format="csv", schema="a int, b int", delimiter="\t"), [b"1\t2"])
    assert (row["a"], row["b"]) == (1, 2)


def test_what_is_malformed_can_be_dropped(spark: SparkSession) -> None:
    value = Value(format="json", schema="id bigint", malformed="drop")
    rows = rows_of(spark, value, [b'{"id": 1}', *BAD_JSON, b'{"id": 2}'])
    # Of the bad ones only the text that is not UTF-8 would do as JSON: it is bad all the same.
    assert [row["id"] for row in rows] == [1, 2]


def test_what_is_malformed_stops_the_pipeline_and_is_named(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    from oncemq.spark.pipeline.spark_errors import explain

    with pytest.raises(PySparkException) as caught:
        rows_of(spark, Value(format="json", schema="id bigint"), [b'{"id": 1}', b'{"id": "many"}'])
    error = explain(caught.value)
    assert type(error) is PipelineFailed
    assert error.text == (
        "topic 'orders', offset 1: the value is not JSON of the schema: column 'id' is no bigint: "
        '{"id": "many"}; `on_error: dead_letter` moves such messages to a dead-letter topic, `on_error: drop` drops '
        "them"
    )


def test_text_is_utf8_and_bytes_are_anything(spark: SparkSession) -> None:
    values = [b"caf\xc3\xa9", b"\xff"]
    rows = rows_of(spark, Value(format="text", malformed="keep"), values)
    assert [(row["value"], row["malformed"]) for row in rows] == [("café", None), (None, "\N{REPLACEMENT CHARACTER}")]
    assert [bytes(row["value"]) for row in rows_of(spark, Value(), values)] == values


def test_only_columns_that_are_needed_are_read() -> None:
    from oncemq.spark.pipeline.values.decoder import source_columns

    def columns(value: Value, *kept: Any) -> list[str]:
        return source_columns(value, kept)

    assert columns(Value()) == ["value"]
    assert columns(JSON, "timestamp") == ["timestamp", "value"]
    assert columns(Value(format="json", schema="id int")) == ["topic", "offset", "value"]


def test_sql_reads_the_view_and_leaves_none_behind(spark: SparkSession) -> None:
    from oncemq.spark.pipeline.transform import apply_transform

    rows = spark.createDataFrame([(1, 2.0), (2, 3.0)], "id int, price double")
    result = apply_transform({"messages": rows}, Transform(sql="SELECT sum(price) AS total FROM messages"))
    assert [row.total for row in result.collect()] == [5.0]
    assert not spark.catalog.tableExists("messages")


def test_a_function_gets_the_rows_and_returns_others(spark: SparkSession) -> None:
    from oncemq.spark.pipeline.transform import apply_transform

    rows = spark.createDataFrame([(1,), (2,)], "id int")
    kept = apply_transform({"messages": rows}, Transform(function=lambda rows: rows.filter("id > 1")))
    assert [row.id for row in kept.collect()] == [2]
    with pytest.raises(PipelineInvalid, match="returned int, but must return a DataFrame"):
        apply_transform({"messages": rows}, Transform(function=lambda rows: 5))
    with pytest.raises(PipelineFailed, match="failed: ZeroDivisionError"):
        apply_transform({"messages": rows}, Transform(function=lambda rows: 1 // 0))


def test_a_module_beside_the_file_reaches_the_workers(spark: SparkSession, tmp_path: Any) -> None:
    from oncemq.spark.pipeline.transform import apply_transform

    (tmp_path / "doubling_for_test.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "def twice(number): return 2 * number\n"
        "def double(rows): return rows.select(udf(twice, 'int')('id').alias('id'))\n"
    )
    rows = spark.createDataFrame([(4,)], "id int")
    result = apply_transform({"messages": rows}, Transform(python="doubling_for_test:double"), str(tmp_path))
    assert [row.id for row in result.collect()] == [8]


def test_sql_that_spark_can_not_read_is_a_sentence_with_its_place(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    from oncemq.spark.pipeline.spark_errors import explain
    from oncemq.spark.pipeline.transform import apply_transform

    rows = spark.createDataFrame([(1,)], "id int")

    def error_of(sql: str) -> str:
        with pytest.raises(PySparkException) as caught:
            apply_transform({"messages": rows}, Transform(sql=sql))
        error = explain(caught.value, lambda offset: f"p.yaml:{offset}: ", sql)
        assert type(error) is PipelineInvalid
        assert "\n" not in error.text
        return error.text

    assert error_of("SELECT id\nFRM messages x").startswith("p.yaml:14: Syntax error at or near 'messages'")
    column = error_of("SELECT id,\n  nme FROM messages")
    assert column.startswith("p.yaml:13: A column, variable, or function parameter with name `nme` cannot be resolved")
    assert column.endswith("`columns` of the source adds columns of the message")
    assert error_of("SELECT * FROM nowhere, messages").startswith("p.yaml:14: The table or view `nowhere` cannot be")


def test_an_error_of_ours_inside_of_spark_is_the_same_error_outside(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import udf

    from oncemq.protocol import errors
    from oncemq.spark.pipeline.spark_errors import explain

    def away(_: int) -> int:
        raise errors.BrokerAway("nobody answers at tcp://nowhere:1")

    def divided(number: int) -> int:
        return number // 0

    rows = spark.createDataFrame([(1,)], "id int")
    for function, kind, text in (
        (away, errors.BrokerAway, "nobody answers at tcp://nowhere:1"),
        (divided, errors.PipelineFailed, "ZeroDivisionError: integer division or modulo by zero"),
    ):
        with pytest.raises(PySparkException) as caught:
            rows.select(udf(function, "int")("id")).collect()
        error = explain(caught.value)
        assert (type(error), error.text) == (kind, text)


def test_rows_without_a_value_become_json(spark: SparkSession) -> None:
    from oncemq.spark.pipeline.values.encoder import encode_rows

    rows = spark.createDataFrame([(1, "ada", None)], "id bigint, customer string, note string")
    [row] = encode_rows(rows, Encoding(key="customer")).collect()
    assert (json.loads(row.value), row.key) == ({"id": 1, "customer": "ada", "note": None}, "ada")


def test_rows_with_a_value_are_messages_as_they_stand(spark: SparkSession) -> None:
    from oncemq.spark.pipeline.values.encoder import encode_rows

    rows = spark.createDataFrame([(bytearray(b"\xff"), bytearray(b"k"))], "value binary, key binary")
    [row] = encode_rows(rows, Encoding()).collect()
    assert (bytes(row.value), bytes(row.key)) == (b"\xff", b"k")
    numbers = spark.createDataFrame([(7, 1)], "value int, id int")
    assert [(row.value, row.key) for row in encode_rows(numbers, Encoding(key="id")).collect()] == [("7", "1")]


def test_rows_may_say_their_topic(spark: SparkSession) -> None:
    from oncemq.spark.pipeline.values.encoder import encode_rows

    rows = spark.createDataFrame([(1, "bills")], "id bigint, topic string")
    [row] = encode_rows(rows, Encoding(), by_row=True).collect()
    assert (json.loads(row.value), row.topic) == ({"id": 1}, "bills")


def test_rows_that_can_not_be_messages_are_refused_by_name(spark: SparkSession) -> None:
    from oncemq.spark.pipeline.values.encoder import encode_rows

    rows = spark.createDataFrame([("x", 1)], "value string, id int")
    with pytest.raises(PipelineInvalid, match="a message has a 'value', but no column 'id'; remove it"):
        encode_rows(rows, Encoding())
    assert json.loads(encode_rows(rows, Encoding(value="json")).collect()[0].value) == {"value": "x", "id": 1}
    with pytest.raises(PipelineInvalid, match=r"rows have no column 'ide'; did you mean id\?"):
        encode_rows(rows, Encoding(value="json", key="ide"))
    with pytest.raises(PipelineInvalid, match="`value: text` needs a column 'value', but the rows have id"):
        encode_rows(rows.select("id"), Encoding(value="text"))
    with pytest.raises(PipelineInvalid, match="no column 'topic'"):
        encode_rows(rows, Encoding(), by_row=True)


def test_a_watermark_is_set_on_a_column(spark: SparkSession) -> None:
    from oncemq.spark.pipeline.transform import apply_watermark

    stream = spark.readStream.format("rate").load()
    plan = apply_watermark(stream, Watermark(column="timestamp", delay="10m"))
    assert "EventTimeWatermark" in plan._jdf.queryExecution().toString()
    assert apply_watermark(stream, None) is stream
